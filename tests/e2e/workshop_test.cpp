// The workshop's experiments, with a small BLOOM and few samples: what its table has to show.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using nlohmann::json;

class Workshop : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    std::string sweep = read_file(SHERD_TEST_SOURCE_DIR "/recipes/workshop/small-bloom.toml");
    replace(sweep, "output = \"runs/workshop/small-bloom", "output = \"" + output().string());
    replace(sweep, "recipe = \"recipes/workshop/small-bloom-run.toml",
            "recipe = \"" + recipe().string());
    std::string run = read_file(SHERD_TEST_SOURCE_DIR "/recipes/workshop/small-bloom-run.toml");
    replace(run, "recipes/models/small-bloom", wide_bloom(model()).string());
    replace(run, "epochs = 5", "epochs = 1");
    replace(run, "max_length = 512", "max_length = 128");
    replace(run, "limit = 250", "limit = 32");
    replace(run, "limit = 100", "limit = 8");
    std::ofstream(recipe()) << run;
    const fs::path file = folder_->write("sweep.toml", sweep);
    const Ended ended = Program({"sweep", file.string(), "--json"}).finish(kSixRuns);
    ASSERT_TRUE(ended.in_time);
    ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
    comparison_ = json::parse(ended.out);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static fs::path model() { return folder_->path() / "model"; }
  static fs::path output() { return folder_->path() / "runs"; }
  static json run(const std::string& name) {
    for (const json& one : comparison_.at("runs")) {
      if (one.at("name") == name) {
        return one;
      }
    }
    throw std::runtime_error("no run " + name);
  }
  // Above what the program holds without a model.
  static double memory(const std::string& name) {
    const json one = run(name);
    return one.at("max_peak_bytes").get<double>() - one.at("constant_bytes").get<double>();
  }
  static inline json comparison_;

 private:
  static fs::path recipe() { return folder_->path() / "run.toml"; }
  static void replace(std::string& text, const std::string& what, const std::string& by) {
    const std::size_t at = text.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    text.replace(at, what.size(), by);
  }
  static constexpr std::chrono::seconds kSixRuns{240};  // 40 on idle cores
  static inline std::unique_ptr<TempFolder> folder_;
};

TEST_F(Workshop, AllExperimentsAreComparable) {
  EXPECT_EQ(comparison_.at("runs").size(), 6);
  EXPECT_EQ(comparison_.at("comparable"), true) << comparison_.at("differences");
}

TEST_F(Workshop, OneRankUnderFsdpIsTheBaseline) {
  EXPECT_EQ(column(output() / "1-baseline", "loss"), column(output() / "2-fsdp-one-rank", "loss"));
  EXPECT_NEAR(memory("2-fsdp-one-rank") / memory("1-baseline"), 1, 0.05);
}

// What is gathered lies in memory that the ranks of a host share: there full_shard and
// shard_grad_op hold as much.
TEST_F(Workshop, TheMoreIsShardedTheLessARankHolds) {
  EXPECT_NEAR(memory("3-full-shard") / memory("3-shard-grad-op"), 1, 0.05);
  EXPECT_LT(memory("3-shard-grad-op"), 0.8 * memory("3-no-shard"));
  EXPECT_LT(memory("4-four-ranks"), 0.9 * memory("3-full-shard"));
}

TEST_F(Workshop, AcrossHostsFullShardHoldsLessThanShardGradOp) {
  const auto planned = [](const std::string& strategy) {
    return json::parse(expect_code(0, {"plan", "recipes/workshop/small-bloom-run.toml", "--nodes",
                                       "4", "--model.path", model().string(), "--parallel.strategy",
                                       strategy, "--json"})
                           .out)
        .at("peak_bytes")
        .get<double>();
  };
  EXPECT_LT(planned("full_shard"), planned("shard_grad_op"));
  EXPECT_LT(planned("shard_grad_op"), planned("no_shard"));
}

TEST_F(Workshop, StrategiesDoNotChangeWhatIsLearned) {
  EXPECT_EQ(run("3-full-shard").at("train_loss"), run("3-no-shard").at("train_loss"));
  EXPECT_EQ(run("3-full-shard").at("eval_loss"), run("3-shard-grad-op").at("eval_loss"));
}

}  // namespace
}  // namespace sherd::test
