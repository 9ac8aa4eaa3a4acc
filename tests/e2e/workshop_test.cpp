// The workshop's experiments, with a small BLOOM and few samples: what its table has to show.

#include <algorithm>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using nlohmann::json;

// Its parameters, 25 million, are more than its activations.
constexpr const char* kWideBloom = "recipes/models/wide-bloom";

class Workshop : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    const Ended ended = Program({"sweep", "recipes/workshop/small-bloom.toml", "--json",
                                 "--train.output", output().string(), "--model.path", kWideBloom,
                                 "--train.epochs", "1", "--data.max_length", "128",
                                 // The norm that clips is summed in another order over shards.
                                 "--optim.clip_grad_norm", "none", "--data.train[0].limit", "32",
                                 "--data.eval[0].limit", "8"})
                            .finish(kEightRuns);
    ASSERT_TRUE(ended.in_time);
    ASSERT_EQ(ended.code, 0) << ended.out << ended.err;
    comparison_ = json::parse(ended.out);
  }
  static void TearDownTestSuite() { folder_.reset(); }

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
  static constexpr std::chrono::seconds kEightRuns{280};  // 50 on idle cores
  static inline std::unique_ptr<TempFolder> folder_;
};

TEST_F(Workshop, AllExperimentsAreComparable) {
  EXPECT_EQ(comparison_.at("runs").size(), 8);
  EXPECT_EQ(comparison_.at("comparable"), true) << comparison_.at("differences");
}

// So the losses of experiments 1 to 3 can be compared.
TEST_F(Workshop, ExperimentsOneToThreeHaveOneGlobalBatch) {
  const json baseline = run("1-baseline");
  for (const json& one : comparison_.at("runs")) {
    if (one.at("name") != "4-four-ranks") {
      EXPECT_EQ(one.at("global_batch"), 4) << one;
      EXPECT_EQ(one.at("steps"), baseline.at("steps")) << one;
      EXPECT_EQ(column(output() / one.at("name").get<std::string>(), "loss"),
                column(output() / "1-baseline", "loss"))
          << one.at("name");
    }
  }
  EXPECT_EQ(comparison_.at("conclusions").size(), 3);
}

TEST_F(Workshop, OneRankUnderFsdpIsTheBaseline) {
  EXPECT_EQ(column(output() / "1-baseline", "loss"), column(output() / "2-fsdp-one-rank", "loss"));
  EXPECT_NEAR(memory("2-fsdp-one-rank") / memory("1-baseline"), 1, 0.05);
}

// What is gathered lies in memory that the ranks of a host share: there full_shard and
// shard_grad_op hold as much.
TEST_F(Workshop, TheMoreIsShardedTheLessARankHolds) {
  EXPECT_NEAR(memory("3-full-shard") / memory("3-shard-grad-op"), 1, 0.05);
  EXPECT_NEAR(memory("3-full-shard") / memory("3-hybrid-shard"), 1, 0.05);
  EXPECT_LT(memory("3-shard-grad-op"), 0.8 * memory("3-no-shard"));
  EXPECT_LT(memory("4-four-ranks"), 0.9 * memory("3-full-shard"));
}

TEST_F(Workshop, AcrossHostsFullShardHoldsLessThanShardGradOp) {
  const auto planned = [](const std::string& strategy) {
    return json::parse(expect_code(0, {"plan", "recipes/workshop/small-bloom-run.toml", "--nodes",
                                       "4", "--model.path", kWideBloom, "--parallel.strategy",
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
  EXPECT_EQ(column(output() / "3-full-shard", "loss"), column(output() / "3-hybrid-shard", "loss"));
}

TEST_F(Workshop, MastersAndMomentsOnADiskTakeLessMemoryAndChangeNothing) {
  EXPECT_LT(memory("3-full-shard-disk"), 0.8 * memory("3-full-shard"));
  EXPECT_EQ(column(output() / "3-full-shard-disk", "loss"),
            column(output() / "3-full-shard", "loss"));
  EXPECT_EQ(column(output() / "3-full-shard-disk", "grad_norm"),
            column(output() / "3-full-shard", "grad_norm"));
}

TEST_F(Workshop, MoreRanksShowWeakScaling) {
  EXPECT_EQ(run("2-fsdp-one-rank").at("scaling"), nullptr);
  EXPECT_EQ(run("4-four-ranks").at("scaling"), "weak");
}

// Experiment 5, on network namespaces: full_shard sends parameters over the link, twice a step, and
// gradients; hybrid_shard gradients alone. The steps' median: the first makes the memory, which
// takes as long as another step where pages are slow to come.
double median_step_seconds(const fs::path& run) {
  std::vector<double> seconds = column(run, "step_seconds");
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds.at(seconds.size() / 2);
}

TEST(WorkshopOnTwoHosts, HybridShardIsFasterAcrossAGigabit) {
  const TempFolder folder;
  const Ended ended = Program({"sweep", "recipes/workshop/small-bloom-hosts.toml", "--launcher",
                               "scripts/two_hosts --rate 1gbit", "--train.output",
                               folder.path().string(), "--train.max_steps", "7", "--json"})
                          .finish(std::chrono::seconds(240));  // 35 on idle cores
  if (ended.err.find("SKIPPED") != std::string::npos) {
    GTEST_SKIP() << ended.err;
  }
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json found = json::parse(ended.out);
  EXPECT_EQ(found.at("comparable"), true) << found.at("differences");
  EXPECT_GT(median_step_seconds(folder.path() / "5-2-hosts-full-shard"),
            1.1 * median_step_seconds(folder.path() / "5-2-hosts-hybrid-shard"))
      << ended.out;
}

}  // namespace
}  // namespace sherd::test
