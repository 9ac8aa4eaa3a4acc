// `sherd eval RUN` on several ranks.

#include "tests/e2e/training.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

class EvalRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    output_ = folder_->path() / "run";
    expect_code(
        0, evaluated(output_, "3", "never") + Arguments{"--eval.batch", "3", "--optim.lr", "1e-2"});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static nlohmann::json evaluate(const Arguments& flags) {
    const Ended ended = expect_code(0, Arguments{"eval", "--loss-only", "--json"} + flags);
    return nlohmann::json::parse(ended.out);
  }

  // NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
  static inline std::unique_ptr<TempFolder> folder_;
  static inline fs::path output_;
  // NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
};

TEST_F(EvalRun, IsTheSameWhereSeveralRanksReadTheirSlices) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const auto one = evaluate({output_, "--dtype", dtype});
    const auto two = evaluate({output_, "--dtype", dtype, "--ranks", "2"});
    EXPECT_NEAR(two.at("loss").get<double>(), one.at("loss").get<double>(), 1e-6) << dtype;
    EXPECT_EQ(two.at("samples"), one.at("samples"));
  }
}

TEST_F(EvalRun, OfADamagedCheckpointIsRefusedOnEveryRank) {
  const fs::path damaged = folder_->path() / "damaged";
  fs::copy(output_, damaged, fs::copy_options::recursive);
  const fs::path shard = damaged / "checkpoints/step-00000003/shard-00000-of-00001.safetensors";
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('!');
  file.close();
  const Ended ended = expect_code(
      65, {"eval", damaged / "checkpoints/step-00000003", "--loss-only", "--ranks", "2"});
  EXPECT_THAT(ended.err, HasSubstr("has another digest than the manifest says"));
}

}  // namespace
}  // namespace sherd::test
