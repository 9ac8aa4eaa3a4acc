// `sherd eval RUN` on several ranks.

#include "tests/e2e/training.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

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
  EXPECT_THAT(ended.err, HasSubstr("has a different digest from that in the manifest"));
}

}  // namespace
}  // namespace sherd::test
