// What is wrong with a run's model fails the item that is there for it.

#include "llm/check/model_checks.h"

#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/setup/load_model.h"
#include "sherd/checkpoint.h"
#include "tests/llm/check/checked_data.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace llm::check {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ModelChecks : public testing::Test, protected CheckedData {
 protected:
  // A model of random weights on one rank, and its optimizer.
  struct OnOneRank {
    OnOneRank(const CheckedData& of, const sherd::World& world)
        : model(setup::random_sharded(of.shape->config, sherd::Mesh::shard(world), {}, 1)),
          optimizer(model) {}
    sherd::Sharded<model::CausalLm> model;
    sherd::AdamW optimizer;
  };
  [[nodiscard]] CheckedRun checked(OnOneRank& of) const {
    return {config, data, shape_, of.model, of.optimizer, nullptr};
  }
  // By name.
  std::map<std::string, CheckItem> learnt(OnOneRank& of, const plan::RunPlan& plan) {
    CheckedRun run = checked(of);
    std::map<std::string, CheckItem> by_name;
    for (const CheckItem& item : learns(run, plan, checkpoint())) {
      by_name[item.name] = item;
    }
    return by_name;
  }
  [[nodiscard]] fs::path checkpoint() const { return folder_.path() / "checkpoint"; }
  [[nodiscard]] fs::path other() const { return folder_.path() / "other"; }

 private:
  inputs::BatchShape shape_{8, 4, 1};
  sherd::test::TempFolder folder_;
};

// Replicas of which one has come by other weights.
void check_replicas(const CheckedData& of, bool alike) {
  sherd::test::run_ranks(2, [&](const sherd::World& world) {
    auto model = setup::random_sharded(of.shape->config, sherd::Mesh::hybrid(world, 1),
                                       {.strategy = sherd::Strategy::HybridShard}, 0);
    for (sherd::ParameterShard& shard : model.parameter_shards()) {
      shard.value.mul_(alike || world.rank() == 0 ? 1 : 1.5);
    }
    model.publish();
    sherd::AdamW optimizer(model);
    const inputs::BatchShape shape{8, 4, 2};
    CheckedRun run{of.config, of.data, shape, model, optimizer, nullptr};
    const CheckItem parameters = ranks_agree_parameters(run);
    const CheckItem loss = ranks_agree_loss(run);
    EXPECT_EQ(parameters.ok, alike) << parameters.message;
    EXPECT_EQ(loss.ok, alike) << loss.message;
    if (!alike) {
      EXPECT_GT(parameters.measured, 5);  // every layer is a unit
      EXPECT_THAT(parameters.message, HasSubstr("; unit 'root' differs on rank 1"));
      EXPECT_EQ(loss.measured, 1);
      EXPECT_THAT(loss.message, HasSubstr("differs from rank 0's on rank 1"));
    }
  });
}

TEST_F(ModelChecks, FailWhereReplicasDiffer) {
  check_replicas(*this, /*alike=*/true);
  check_replicas(*this, /*alike=*/false);
}

TEST_F(ModelChecks, FailWhereARunIsSlowerThanPlannedWithMeasuredRates) {
  plan::RunPlan plan;
  plan.tokens_per_second = 1e15;
  plan.rates = "measured here";
  plan.time.step_seconds = 0.25;
  OnOneRank slow(*this, sherd::World::alone());
  const auto found = learnt(slow, plan);
  EXPECT_FALSE(found.at("throughput").ok);
  EXPECT_EQ(found.at("throughput").limit, 5e14);
  EXPECT_TRUE(found.at("loss_falls").ok);
  fs::remove_all(checkpoint());
  plan.time.step_seconds = 0.1;  // too short to tell
  EXPECT_TRUE(learnt(slow, plan).at("throughput").ok);
  fs::remove_all(checkpoint());
  plan.time.step_seconds = 0.25;
  plan.rates = "assumed: 40 GFLOP/s";
  EXPECT_TRUE(learnt(slow, plan).at("throughput").ok);
}

// Puts another checkpoint in its place when it has been saved.
class Exchanges final : public sherd::CollectiveObserver {
 public:
  Exchanges(fs::path checkpoint, fs::path other)
      : checkpoint_(std::move(checkpoint)), other_(std::move(other)) {}
  void started(const sherd::Collective& collective) override {
    const bool saved = collective.operation == sherd::Collective::Operation::Gather &&
                       fs::exists(checkpoint_) && fs::exists(other_);
    if (saved) {
      fs::remove_all(checkpoint_);
      fs::rename(other_, checkpoint_);
    }
  }

 private:
  fs::path checkpoint_;
  fs::path other_;
};

TEST_F(ModelChecks, FailWhereWhatIsLoadedIsNotWhatWasSaved) {
  sherd::World world = sherd::World::alone();
  world.set_observer(std::make_shared<Exchanges>(checkpoint(), other()));
  OnOneRank run(*this, world);
  EXPECT_TRUE(learnt(run, {}).at("checkpoint_round_trip").ok);
  fs::rename(checkpoint(), other());
  const auto found = learnt(run, {});
  EXPECT_FALSE(fs::exists(other()));
  EXPECT_FALSE(found.at("checkpoint_round_trip").ok);
  EXPECT_GT(found.at("checkpoint_round_trip").measured, 0);
  EXPECT_THAT(found.at("checkpoint_round_trip").message, HasSubstr("other bits"));
}

TEST_F(ModelChecks, FailWhereTheLongestMicroBatchTakesMoreThanThereIs) {
  OnOneRank of(*this, sherd::World::alone());
  CheckedRun run = checked(of);
  plan::RunPlan plan;
  plan.constant_bytes = std::int64_t{1} << 40;
  plan.available_bytes = 1'000'000;
  const CheckItem item = memory(run, plan, {0, 1, 2, 3});
  EXPECT_FALSE(item.ok);
  EXPECT_EQ(item.limit, 1'000'000);
  EXPECT_GT(item.measured, item.limit);
  plan.available_bytes = std::int64_t{1} << 40;
  EXPECT_TRUE(memory(run, plan, {0, 1, 2, 3}).ok);
}

TEST_F(ModelChecks, FailWhereTheLongestMicroBatchTakesMoreThanPlanned) {
  OnOneRank of(*this, sherd::World::alone());
  CheckedRun run = checked(of);
  plan::RunPlan plan;
  plan.constant_bytes = 1'000'000;  // the program alone takes more
  const CheckItem item = memory(run, plan, {0, 1, 2, 3});
  EXPECT_FALSE(item.ok);
  EXPECT_EQ(item.limit, 1'000'000 + (64 << 20));
  EXPECT_THAT(item.message, HasSubstr("the plan is off by more than it may be"));
}

}  // namespace
}  // namespace llm::check
