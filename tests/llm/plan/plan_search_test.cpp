// Which settings of a run fit, and what `train.micro_batch = "auto"` becomes.

#include "llm/plan/plan_search.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/plan/planned_batches.h"

namespace llm::plan {
namespace {

using testing::HasSubstr;

class Search : public testing::Test {
 protected:
  Search() {
    config_.model.path = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
    config_.train.global_batch = 8;
    config_.data.max_length = 256;
    hosts_.memory_bytes = std::int64_t{8} << 30;
    hosts_.device.pooling = {};  // whose segments are larger than the model
  }

  [[nodiscard]] BatchesOf batches_of() const {
    return [](const config::RunConfig& config) { return planned_batches(config, 512); };
  }
  [[nodiscard]] std::vector<FittingSetting> search() const {
    return search_plans(config_, shape_, hosts_, batches_of());
  }
  // Of a rank with its reserve, with all else as it is.
  [[nodiscard]] std::int64_t needed(std::int64_t micro_batch) const {
    config::RunConfig config = config_;
    config.train.micro_batch = micro_batch;
    const RunPlan plan = plan_run(config, shape_, hosts_, batches_of()(config));
    return plan.needed_bytes() + plan.reserve_bytes;
  }

  config::RunConfig config_;
  setup::ModelShape shape_ =
      setup::model_shape(SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf", {});
  PlannedHosts hosts_{device_of_name("h100-80g"), 1, 2};
};

TEST_F(Search, ListsStrategiesAndMicroBatchesTheFastestFirst) {
  const std::vector<FittingSetting> found = search();
  // Three strategies with 1, 2 and 4 samples of a rank's 4, and another with several micro-batches.
  EXPECT_EQ(found.size(), 11);
  EXPECT_TRUE(std::is_sorted(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.plan.tokens_per_second > b.plan.tokens_per_second;
  }));
  std::set<std::string> strategies;
  for (const FittingSetting& one : found) {
    strategies.insert(one.set.at(0).second);
    EXPECT_EQ(one.set.at(2).second, "false");  // no saving where none is needed
    EXPECT_EQ(one.set.at(3).second, "float32");
  }
  EXPECT_EQ(strategies,
            (std::set<std::string>{"full_shard", "no_shard", "shard_grad_op", "shard_optimizer"}));
  EXPECT_THAT(to_text(found),
              HasSubstr("micro_batch  activation_checkpointing   master  moments\n"));
  EXPECT_THAT(to_text(found), HasSubstr("recommended: "));
}

TEST_F(Search, HasHybridStrategiesOnSeveralHosts) {
  hosts_.hosts = 2;
  const std::vector<FittingSetting> found = search();
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const FittingSetting& one) {
    return one.set.at(0).second == "hybrid_shard";
  }));
}

TEST_F(Search, SavesMemoryWhereItIsShort) {
  hosts_.memory_bytes = needed(4) - (std::int64_t{1} << 20);
  const std::vector<FittingSetting> found = search();
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const FittingSetting& one) {
    return one.set.at(1).second == "4" && one.set.at(2).second == "true";
  }));
  hosts_.memory_bytes = 1 << 20;
  EXPECT_TRUE(search().empty());
  EXPECT_THAT(to_text(search()), HasSubstr("no setting of strategy"));
}

TEST_F(Search, IsInTheJsonOfAPlan) {
  config_.train.micro_batch = 2;
  const auto line = json_of(plan_run(config_, shape_, hosts_, batches_of()(config_)), search());
  EXPECT_TRUE(line.at("fits"));
  EXPECT_EQ(line.at("search").size(), 11);
  EXPECT_GT(line.at("search").at(0).at("tokens_per_second"), 0.0);
  EXPECT_GT(line.at("search").at(0).at("peak_bytes"), 0);
  EXPECT_TRUE(line.at("search").at(0).at("set").contains("train.micro_batch"));
}

FittingSetting setting(const std::string& strategy, double tokens_per_second,
                       std::int64_t peak_bytes) {
  FittingSetting made{{{"parallel.strategy", strategy}}, {}};
  made.plan.tokens_per_second = tokens_per_second;
  made.plan.memory.peak_bytes = peak_bytes;
  return made;
}

TEST(Recommended, IsWhatTakesLeastMemoryOfThoseThatAreAsFast) {
  const std::vector<FittingSetting> found = {
      setting("no_shard", 1000, 300), setting("shard_grad_op", 1000, 200),
      setting("full_shard", 995, 100), setting("hybrid_shard", 989, 50)};
  EXPECT_EQ(recommended(found).set[0].second, "full_shard");
  const std::string text = to_text(found);
  EXPECT_THAT(text, HasSubstr("as fast   0 MiB  shard_grad_op\n"));
  EXPECT_THAT(text, HasSubstr("as fast   0 MiB     full_shard\n"));
  EXPECT_THAT(text, HasSubstr("989   0 MiB   hybrid_shard\n"));
  EXPECT_THAT(text, HasSubstr("recommended: least memory among settings within 1 % of the "
                              "fastest\n  --parallel.strategy full_shard"));
  const auto line = json_of(RunPlan{}, found);
  EXPECT_EQ(line.at("recommended").at("parallel.strategy"), "full_shard");
  EXPECT_FALSE(json_of(RunPlan{}, std::vector<FittingSetting>{}).contains("recommended"));
}

TEST_F(Search, TakesTheFastestMicroBatchThatFits) {
  config_.train.micro_batch = std::nullopt;
  const auto chosen = [&] { return fastest_micro_batch(config_, shape_, hosts_, batches_of()); };
  EXPECT_EQ(chosen(), 4);
  hosts_.memory_bytes = needed(4) - 1;  // not all of the reserve
  EXPECT_EQ(chosen(), 2);
  hosts_.memory_bytes = (needed(1) + needed(2)) / 2;
  EXPECT_EQ(chosen(), 1);
  hosts_.memory_bytes = 1 << 20;
  EXPECT_FALSE(chosen());
  EXPECT_EQ(micro_batch_line(chosen()), "train.micro_batch: 1, because none is planned to fit");
}

TEST_F(Search, PassesOverStrategiesThatDoNotGoWithOtherSettings) {
  config_.parallel.reshard_after_forward_size = 1;
  for (const FittingSetting& one : search_plans(config_, shape_, hosts_, batches_of())) {
    EXPECT_EQ(one.set[0].second, "full_shard");
  }
}

TEST_F(Search, TakesASmallerMicroBatchWhereThatIsFaster) {
  const BatchesOf of_unequal_ranks = [&](const config::RunConfig& config) {
    PlannedBatches batches = batches_of()(config);
    batches.tokens_a_step /= config.train.micro_batch == 4 ? 100 : 1;
    return batches;
  };
  EXPECT_EQ(fastest_micro_batch(config_, shape_, hosts_, of_unequal_ranks), 2);
}

}  // namespace
}  // namespace llm::plan
