// How long a planned step takes: its operators, and what links hold up.

#include "llm/plan/step_time.h"

#include <map>

#include <gtest/gtest.h>

#include "llm/eval/batch_tensors.h"
#include "llm/plan/operator_watch.h"
#include "llm/train/load_model.h"
#include "tests/llm/plan/small_runs.h"

namespace llm::plan {
namespace {

Rates products_at(double operations_per_second) {
  Rates rates;
  rates.operations_per_second = operations_per_second;
  return rates;
}

std::map<std::string, double> amounts_of(const std::function<void()>& work) {
  std::map<std::string, double> amounts;
  const OperatorWatch watch([&](const OperatorCall& call) {
    if (!call.kind.starts_with("aten::")) {
      amounts[call.kind] += call.amount;
    }
  });
  work();
  return amounts;
}

TEST(OperatorWatch, SeesOnMetaWhatIsComputed) {
  for (const char* const family : {"llama", "bloom"}) {
    const PlannedRun run = planned_run(family, 1, sherd::Strategy::FullShard);
    const model::CausalLm module = meta_module(run);
    auto on_meta = meta_model(module, run);
    auto real = train::random_sharded(run.model, sherd::Mesh::shard(sherd::World::alone()),
                                      run.sharding, 1);
    const auto planned = amounts_of([&] { loss_of(on_meta, run.micro_batches[0]).backward(); });
    const auto computed =
        amounts_of([&] { eval::loss_sum(real, eval::to_tensors(real_batch())).backward(); });
    for (const auto& [kind, amount] : computed) {
      if (amount > 0) {
        ASSERT_TRUE(planned.contains(kind)) << kind;
        EXPECT_DOUBLE_EQ(planned.at(kind), amount) << kind;
      }
    }
    EXPECT_GT(computed.at("linear_backward float32"), computed.at("linear float32"));
  }
}

TEST(StepTime, IsInInverseProportionToTheRateOfProducts) {
  const PlannedRun run = planned_run("llama", 1, sherd::Strategy::FullShard);
  const double once = plan_step_time(run, products_at(1e9), {}).step_seconds;
  EXPECT_GT(once, 0);
  EXPECT_NEAR(plan_step_time(run, products_at(2e9), {}).step_seconds, once / 2, 1e-9);
}

TEST(StepTime, ExposesWhatASlowLinkCarries) {
  PlannedRun run = planned_run("llama", 2, sherd::Strategy::FullShard);
  run.ranks.local_size = 1;
  const auto exposed = [&](double bytes_per_second) {
    return plan_step_time(run, products_at(1e9), {.host_bytes_per_second = bytes_per_second});
  };
  const StepTime slow = exposed(1e5), fast = exposed(1e12);
  const double computing = plan_step_time(run, products_at(1e9), {}).step_seconds;
  EXPECT_LT(fast.exposed_communication_seconds, 1e-3 * computing);
  EXPECT_GT(slow.exposed_communication_seconds, 10 * computing);
  double bytes = 0;
  for (const at::Tensor& parameter : meta_module(run)->parameters()) {
    bytes += static_cast<double>(parameter.nbytes());
  }
  // A half of each unit for forward and of its gradient; those inside the root once more.
  EXPECT_GT(slow.exposed_communication_seconds * 1e5, bytes);
  EXPECT_LT(slow.exposed_communication_seconds * 1e5, 1.5 * bytes);
  EXPECT_NEAR(slow.step_seconds, computing + slow.exposed_communication_seconds, 1e-9);
  EXPECT_NEAR(exposed(5e4).exposed_communication_seconds, 2 * slow.exposed_communication_seconds,
              computing);
}

// Two hosts of two ranks: what is gathered within a host does not cross the link.
TEST(StepTime, OfHybridShardWaitsForSumsAlone) {
  const auto exposed = [](sherd::Strategy strategy) {
    PlannedRun run = planned_run("llama", 4, strategy);
    run.ranks.local_size = 2;
    return plan_step_time(run, products_at(1e9), {.host_bytes_per_second = 1e5})
        .exposed_communication_seconds;
  };
  const double full = exposed(sherd::Strategy::FullShard);
  EXPECT_LT(exposed(sherd::Strategy::HybridShard), 0.8 * full);
  EXPECT_GT(exposed(sherd::Strategy::HybridShard), 0);
  EXPECT_GT(exposed(sherd::Strategy::NoShard), 0);
}

// Each host of two gathers half of every unit for forward and, inside the root, for backward, and
// sends as many bytes of each of its two ranks' gradients.
TEST(StepTime, AShardCrossesToAHostOfSeveralRanksOnce) {
  PlannedRun run = planned_run("llama", 4, sherd::Strategy::FullShard);
  run.ranks.local_size = 2;
  const double rate = 1e5;
  const double crossed = plan_step_time(run, products_at(1e15), {.host_bytes_per_second = rate})
                             .exposed_communication_seconds *
                         rate;
  double bytes = 0;
  for (const at::Tensor& parameter : meta_module(run)->parameters()) {
    bytes += static_cast<double>(parameter.nbytes());
  }
  EXPECT_GT(crossed, 1.5 * bytes);
  EXPECT_LT(crossed, 2.1 * bytes);
}

TEST(StepTime, OfNoShardUpdatesTheWholeModel) {
  const auto seconds = [](sherd::Strategy strategy, double of_optimizer) {
    Rates rates = products_at(1e12);
    rates.kinds[step_kind::kOptimizer + std::string(" float32")] = {{1, of_optimizer}};
    return plan_step_time(planned_run("llama", 2, strategy), rates, {}).step_seconds;
  };
  const auto update = [&](sherd::Strategy strategy) {
    return seconds(strategy, 1e-3) - seconds(strategy, 0);
  };
  EXPECT_NEAR(update(sherd::Strategy::NoShard) / update(sherd::Strategy::FullShard), 2, 1e-6);
}

TEST(StepTime, OfRanksThatShareMemoryWaitsForNoLink) {
  const PlannedRun run = planned_run("llama", 2, sherd::Strategy::FullShard);
  EXPECT_EQ(plan_step_time(run, products_at(1e9), {.host_bytes_per_second = 1})
                .exposed_communication_seconds,
            0);
}

}  // namespace
}  // namespace llm::plan
