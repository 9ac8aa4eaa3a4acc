// What a rank holds, by the names that people have for it.

#include "llm/plan/memory_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/plan/meta_meter.h"
#include "tests/llm/plan/small_runs.h"

namespace llm::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

MemoryPlan planned(sherd::Strategy strategy) {
  PlannedRun run = planned_run("llama", 2, strategy);
  run.ranks.local_size = 1;
  run.sharding.precision.param_dtype = at::kBFloat16;
  run.libraries_bytes = kHostLibrariesBytes;
  run.pooling = kHostPooling;
  return plan_memory(run);
}

// A buffer of the engine that is not known here would pass for activations.
TEST(MemoryTable, KnowsTheBuffersOfTheEngine) {
  for (const auto strategy :
       {sherd::Strategy::FullShard, sherd::Strategy::ShardGradOp, sherd::Strategy::NoShard}) {
    const MemoryPlan plan = planned(strategy);
    for (const PhasePlan& one : plan.phases) {
      for (const auto& [item, bytes] : one.items) {
        EXPECT_TRUE(held_for(item) != Held::Activations || item.find(' ') == std::string::npos)
            << item << ": operators have names of one word";
      }
    }
    EXPECT_EQ(bytes_of(phase(plan, "load"), Held::Activations), 0);
    EXPECT_GT(bytes_of(phase(plan, "forward"), Held::Activations), 0);
    EXPECT_EQ(bytes_of(phase(plan, "forward"), Held::Libraries), kHostLibrariesBytes);
  }
}

TEST(MemoryTable, CountsEachByteOnce) {
  const MemoryPlan plan = planned(sherd::Strategy::FullShard);
  const PhasePlan& backward = phase(plan, "backward");
  std::int64_t sum = 0;
  for (const Held held :
       {Held::Parameters, Held::Masters, Held::Moments, Held::Gradients, Held::GatheredUnits,
        Held::ExchangedGradients, Held::Activations, Held::Libraries, Held::Kept}) {
    sum += bytes_of(backward, held);
    EXPECT_GT(bytes_of(backward, held), held == Held::Kept ? -1 : 0) << name_of(held, {"bfloat16"});
  }
  EXPECT_EQ(sum, backward.total_bytes);
}

TEST(MemoryTable, IsALineForEachAndAColumnForEachPhase) {
  MemoryPlan plan;
  plan.peak_bytes = 4096 * kMiB;
  plan.phases = {{"load", 1024 * kMiB, {{"master shards", 1024 * kMiB}}},
                 {"forward",
                  4096 * kMiB,
                  {{"master shards", 1024 * kMiB},
                   {"linear", 2048 * kMiB},
                   {"aten::add", 512 * kMiB},
                   {"rotary", 10 * kMiB},
                   {kKeptItem, 502 * kMiB}}}};
  EXPECT_EQ(
      memory_table(plan, {"bfloat16"}),
      "peak per rank, GiB:              load  forward\n  float32 masters                 1.0      "
      "1.0\n  activations                       -      2.5\n  free, kept by the allocator    "
      "   -      0.5\n  total                           1.0      4.0");
  EXPECT_THAT(memory_table(plan, {"float32"}), HasSubstr("parameters, float32"));
  EXPECT_THAT(memory_table(plan, {"bfloat16", true}), HasSubstr("low halves of masters  "));
  EXPECT_EQ(largest_activations(plan.phases[1]), "linear 2.0 GiB, add 512 MiB");
  EXPECT_EQ(largest_activations(plan.phases[0]), "");
  EXPECT_EQ(largest_of(plan.phases[1]), Held::Activations);
  plan.phases[1].items[kKeptItem] = 8192 * kMiB;  // what is free is not what is needed
  EXPECT_EQ(largest_of(plan.phases[1]), Held::Activations);
}

TEST(MemoryTable, OfASmallPlanIsInMiB) {
  MemoryPlan plan;
  plan.peak_bytes = 3 * kMiB;
  plan.phases = {{"load", 3 * kMiB, {{"optimizer state", 3 * kMiB}}}};
  EXPECT_THAT(memory_table(plan, {"float32"}), HasSubstr("peak per rank, MiB:"));
  EXPECT_THAT(memory_table(plan, {"float32"}), HasSubstr("AdamW's moments                   3"));
  EXPECT_THAT(memory_table(plan, {"float32"}), Not(HasSubstr("gradients")));
}

}  // namespace
}  // namespace llm::plan
