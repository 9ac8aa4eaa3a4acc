// A plan of a rank's memory, compared with a real step of the same model.

#include "llm/plan/memory_plan.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "llm/eval/generation.h"
#include "llm/model/quantized.h"
#include "llm/model/random_weights.h"
#include "llm/plan/memory_table.h"
#include "llm/plan/meta_meter.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"
#include "llm/setup/trainable_parameters.h"
#include "ops/as_on_gpus.h"
#include "ops/attention.h"
#include "ops/cpu/isa.h"
#include "ops/q8_0.h"
#include "sherd/checkpoint.h"
#include "sherd/optim.h"
#include "tests/llm/plan/small_runs.h"
#include "tests/ops/with_isa.h"
#include "tests/support/allocated_bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::plan {
namespace {

// Quantized weights are zeros, since memory does not depend on values.
sherd::Sharded<model::CausalLm> model_of(const PlannedRun& run) {
  auto module = sherd::on_meta([&] {
    auto built = io::build_model(run.model);
    if (run.prepare) {
      run.prepare(built);
    }
    return built;
  });
  std::set<std::string> quantized;
  for (const auto& item : module->named_parameters()) {
    if (sherd::ops::q8_0::is_quantized(item.value())) {
      quantized.insert(item.key());
    }
  }
  const auto fill = model::random_weights(*module, 0.02);
  auto sharded =
      sherd::fully_shard(module, sherd::Mesh::shard(sherd::World::alone()), run.sharding);
  sherd::initialize(sharded, 1, [&](sherd::ParameterInit& parameter) {
    quantized.contains(parameter.name()) ? parameter.fill_constant(0) : fill(parameter);
  });
  return sharded;
}

// Of forward and backward of a real step, LibTorch's tensors alone: the engine's buffers are not.
std::int64_t real_peak(const PlannedRun& run) {
  auto model = model_of(run);
  std::int64_t peak = 0;
  for (int step = 0; step < 2; ++step) {  // what is made once is there in the second
    const sherd::test::AllocatedBytes bytes;
    setup::loss_sum(model, setup::to_tensors(real_batch())).backward();
    peak = bytes.peak();
  }
  return peak;
}

std::int64_t bytes_of_engine(const PhasePlan& phase) {
  std::int64_t bytes = 0;
  for (const char* const kind : {"master shards", "travelling shards", "optimizer state",
                                 "gradient shards", "gradients to be reduced"}) {
    const auto item = phase.items.find(kind);
    bytes += item == phase.items.end() ? 0 : item->second;
  }
  return bytes;
}

class PlanOf : public testing::TestWithParam<const char*> {
 private:
  // What oneDNN takes for its products is not known before.
  sherd::ops::WithIsa path_{std::min(sherd::ops::cpu::isa(), sherd::ops::cpu::Isa::Avx2)};
};
INSTANTIATE_TEST_SUITE_P(Families, PlanOf, testing::Values("llama", "bloom"));

TEST_P(PlanOf, AStepIsWhatItTakes) {
  for (const bool narrow : {false, true}) {
    for (const bool checkpointed : {false, true}) {
      PlannedRun run = planned_run(GetParam(), 1, sherd::Strategy::FullShard);
      run.sharding.units = sherd::unit_policy::every_unit({.checkpoint_activations = checkpointed});
      if (narrow) {
        run.sharding.precision.param_dtype = at::kBFloat16;
      }
      const MemoryPlan plan = plan_memory(run);
      const auto activations = [](const PhasePlan& of) {
        return static_cast<double>(of.total_bytes - bytes_of_engine(of));
      };
      const double planned =
          std::max(activations(phase(plan, "forward")), activations(phase(plan, "backward")));
      const auto real = static_cast<double>(real_peak(run));
      EXPECT_NEAR(planned / real, 1, 0.02)
          << (narrow ? "bf16" : "fp32") << (checkpointed ? ", checkpointed" : "");
    }
  }
}

// Of the last layer alone: no other has a backward, and none keeps what that would need.
TEST_P(PlanOf, AStepOfAPartIsWhatItTakes) {
  const auto real_and_planned = [&](bool checkpointed) {
    PlannedRun run = planned_run(GetParam(), 1, sherd::Strategy::FullShard);
    run.sharding.units = sherd::unit_policy::every_unit({.checkpoint_activations = checkpointed});
    const MemoryPlan whole = plan_memory(run);
    run.prepare = [](model::CausalLm& module) { setup::freeze_all_but(*module, {R"(.*\.2\..*)"}); };
    const MemoryPlan plan = plan_memory(run);
    const auto activations = [](const PhasePlan& of) {
      return static_cast<double>(of.total_bytes - bytes_of_engine(of));
    };
    EXPECT_LT(activations(phase(plan, "forward")), activations(phase(whole, "forward")));
    return std::pair(
        static_cast<double>(real_peak(run)),
        std::max(activations(phase(plan, "forward")), activations(phase(plan, "backward"))));
  };
  for (const bool checkpointed : {false, true}) {
    const auto [real, planned] = real_and_planned(checkpointed);
    EXPECT_NEAR(planned / real, 1, 0.05) << (checkpointed ? "checkpointed" : "");
  }
}

// Norms are trained; rows of 136 and 300 numbers do not fit, those of a wider model do.
TEST_P(PlanOf, AStepOnABaseIn8BitsIsWhatItTakes) {
  PlannedRun run = planned_run(GetParam(), 1, sherd::Strategy::FullShard);
  run.model.shape.hidden_size = 160;
  run.model.shape.feed_forward_size = 640;
  run.model.shape.head_size = 80;
  run.sharding.precision.param_dtype = at::kBFloat16;
  run.prepare = [](model::CausalLm& module) { setup::freeze_all_but(*module, {R"(.*norm.*)"}); };
  const auto travelling = [](const MemoryPlan& of) {
    return phase(of, "forward").items.at("travelling shards");
  };
  const MemoryPlan in_bf16 = plan_memory(run);
  run.prepare = [freeze = run.prepare](model::CausalLm& module) {
    freeze(module);
    model::quantize_q8_0(*module);
  };
  const MemoryPlan plan = plan_memory(run);
  const auto activations = [](const PhasePlan& of) {
    return static_cast<double>(of.total_bytes - bytes_of_engine(of));
  };
  const double planned =
      std::max(activations(phase(plan, "forward")), activations(phase(plan, "backward")));
  EXPECT_NEAR(planned / static_cast<double>(real_peak(run)), 1, 0.05);
  auto model = model_of(run);
  EXPECT_EQ(travelling(plan), model.memory().bytes(sherd::MemoryKind::TravellingShard));
  EXPECT_LT(travelling(plan), travelling(in_bf16));
}

// Its loss, then answers where they are planned: kSupervised tokens each, none of which ends one.
std::int64_t real_evaluation_peak(const PlannedRun& run) {
  auto model =
      setup::random_sharded(run.model, sherd::Mesh::shard(sherd::World::alone()), run.sharding, 1);
  const at::NoGradGuard no_grad;
  const inputs::Batch batch = real_batch();
  std::vector<std::vector<text::TokenId>> prompts;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    const auto begin = batch.input_ids.begin() + batch.bounds.at(static_cast<size_t>(sample));
    prompts.emplace_back(begin, begin + kSample - kSupervised);
  }
  std::int64_t peak = 0;
  for (int times = 0; times < 2; ++times) {  // what is made once is there in the second
    const sherd::test::AllocatedBytes bytes;
    static_cast<void>(setup::loss_sum(model, setup::to_tensors(batch)));
    if (run.evaluation->max_new_tokens > 0) {
      static_cast<void>(eval::generate(model, prompts, kSupervised, {}));
    }
    peak = bytes.peak();
  }
  return peak;
}

TEST_P(PlanOf, AnEvaluationIsWhatItTakes) {
  for (const bool narrow : {false, true}) {
    for (const bool generates : {false, true}) {
      PlannedRun run = planned_run(GetParam(), 1, sherd::Strategy::FullShard);
      run.evaluation =
          PlannedEvaluation{run.micro_batches.front(), generates ? kSupervised : std::int64_t{0}};
      if (narrow) {
        run.sharding.precision.param_dtype = at::kBFloat16;
      }
      const PhasePlan evaluation = phase(plan_memory(run), "evaluation");
      const auto planned =
          static_cast<double>(evaluation.total_bytes - bytes_of_engine(evaluation));
      EXPECT_NEAR(planned / static_cast<double>(real_evaluation_peak(run)), 1, 0.02)
          << (narrow ? "bf16" : "fp32") << (generates ? ", with answers" : "");
    }
  }
}

// Bytes go from files to where they stay, and from there to files: beside what stays there is
// nothing to speak of, as the plan has it.
TEST_P(PlanOf, LoadingAndSavingTakeNothingBesideWhatStays) {
  const sherd::test::TempFolder folder;
  const PlannedRun run = planned_run(GetParam(), 1, sherd::Strategy::FullShard);
  const MemoryPlan plan = plan_memory(run);
  const sherd::Mesh mesh = sherd::Mesh::shard(sherd::World::alone());
  auto saved = setup::random_sharded(run.model, mesh, run.sharding, 1);
  auto model = setup::random_sharded(run.model, mesh, run.sharding, 2);
  sherd::AdamW saved_optimizer(saved), optimizer(model);
  const std::int64_t allowance = phase(plan, "load").total_bytes / 50;
  const sherd::test::AllocatedBytes bytes;
  sherd::save_checkpoint(saved, saved_optimizer, (folder.path() / "checkpoint").string(), "");
  sherd::load_checkpoint(model, optimizer, (folder.path() / "checkpoint").string());
  EXPECT_LE(bytes.peak(), allowance);
  for (const char* const name : {"load", "save"}) {
    const PhasePlan& of = phase(plan, name);
    EXPECT_LE(of.total_bytes - bytes_of_engine(of), allowance) << name;
  }
  EXPECT_EQ(saved.memory().total_bytes(), bytes_of_engine(phase(plan, "load")));
}

TEST(MemoryPlan, ShardsWhatTheStrategyShards) {
  using sherd::Strategy;
  const auto peak = [](int ranks, Strategy strategy) {
    return plan_memory(planned_run("llama", ranks, strategy)).peak_bytes;
  };
  EXPECT_LE(peak(4, Strategy::FullShard), peak(4, Strategy::ShardGradOp));
  EXPECT_LT(peak(4, Strategy::ShardGradOp), peak(4, Strategy::NoShard));
  EXPECT_LT(peak(4, Strategy::FullShard), peak(2, Strategy::FullShard));
  EXPECT_GE(peak(4, Strategy::NoShard), peak(1, Strategy::FullShard));
}

TEST(MemoryPlan, NamesThePhaseAndTheItemThatPeak) {
  const MemoryPlan plan = plan_memory(planned_run("llama", 2, sherd::Strategy::FullShard));
  const PhasePlan& worst = phase(plan, plan.peak_phase);
  EXPECT_EQ(worst.total_bytes, plan.peak_bytes);
  std::int64_t sum = 0;
  for (const auto& [item, bytes] : worst.items) {
    sum += bytes;
    EXPECT_LE(bytes, worst.items.at(plan.peak_item)) << item;
  }
  EXPECT_EQ(sum, worst.total_bytes);
}

TEST(MemoryPlan, NamesWhatIsInUseWhereFreedMemoryIsKept) {
  PlannedRun run = planned_run("llama", 2, sherd::Strategy::FullShard);
  run.pooling = kHostPooling;
  const MemoryPlan plan = plan_memory(run);
  EXPECT_EQ(plan.peak_phase, "backward");
  EXPECT_NE(plan.peak_item, kKeptItem);
}

TEST(MemoryPlan, OfACheckpointedStepHasNothingLeftOfItsActivations) {
  PlannedRun run = planned_run("llama", 1, sherd::Strategy::FullShard);
  run.sharding.units = sherd::unit_policy::every_unit({.checkpoint_activations = true});
  const MemoryPlan plan = plan_memory(run);
  const PhasePlan& optimizer = phase(plan, "optimizer");
  EXPECT_LT(optimizer.total_bytes - bytes_of_engine(optimizer),
            kSample * kSamples * run.model.shape.hidden_size * 4);
}

TEST(MemoryPlan, TakesNoMemoryForALargeModel) {
  PlannedRun run = planned_run("llama", 8, sherd::Strategy::FullShard);
  run.model.shape.layers = 80;
  run.model.shape.hidden_size = 8192;
  run.model.shape.heads = 64;
  run.model.shape.key_heads = 8;
  run.model.shape.head_size = 128;
  run.model.shape.feed_forward_size = 28'672;
  run.model.shape.vocab_size = 128'256;
  run.sharding.precision.param_dtype = at::kBFloat16;
  EXPECT_GT(plan_memory(run).peak_bytes, std::int64_t{100} << 30);
}

// Of a GPU by itself: what travels, master, two moments and the sum of the gradient.
TEST(MemoryPlan, HasTheBytesOfEachMemoryMode) {
  using sherd::Master;
  PlannedRun run = planned_run("llama", 1, sherd::Strategy::FullShard);
  run.model.shape.hidden_size = 256;  // of which no segment has to be padded
  run.model.shape.feed_forward_size = 512;
  run.model.shape.head_size = 128;
  run.model.shape.vocab_size = 1024;
  run.ranks.device = c10::DeviceType::CUDA;
  run.sharding.precision.param_dtype = at::kBFloat16;
  std::int64_t parameters = 0;
  for (const at::Tensor& parameter : meta_module(run)->parameters()) {
    parameters += parameter.numel();
  }
  const auto bytes_a_parameter = [&] {
    const MemoryPlan plan = plan_memory(run);
    std::int64_t bytes = 0;
    for (const auto& [item, held] : phase(plan, "save").items) {
      const bool is_kept = item == "travelling shards" || item == "master shards" ||
                           item == "optimizer state" || item == "gradient shards";
      bytes += is_kept ? held : 0;
    }
    return static_cast<double>(bytes) / static_cast<double>(parameters);
  };
  for (const auto& [master, master_bytes] :
       {std::pair(Master::Float32, 4), {Master::Split, 2}, {Master::BFloat16, 0}}) {
    for (const auto& [moments, moment_bytes] : {std::pair(at::kFloat, 4), {at::kBFloat16, 2}}) {
      for (const auto& [sums, sum_bytes] : {std::pair(at::kFloat, 4), {at::kBFloat16, 2}}) {
        run.sharding.precision.master = master;
        run.sharding.precision.reduce_dtype = sums;
        run.adamw.moments_dtype = moments;
        EXPECT_EQ(bytes_a_parameter(), 2 + master_bytes + 2 * moment_bytes + sum_bytes)
            << name_of(master) << ", moments " << moments << ", sums " << sums;
      }
    }
  }
}

// What the graphs keep is what a micro-batch takes of operators, once more, in all that follows.
TEST(MemoryPlan, OfGraphsHasTheActivationsTwice) {
  constexpr std::int64_t kSegment = std::int64_t{20} << 20;
  PlannedRun run = planned_run("llama", 2, sherd::Strategy::FullShard);
  run.ranks.device = c10::DeviceType::CUDA;
  run.pooling = kCachingPooling;
  const MemoryPlan without = plan_memory(run);
  run.cuda_graphs = true;
  const MemoryPlan with = plan_memory(run);
  const std::int64_t activations =
      std::max(bytes_of(phase(without, "forward"), Held::Activations),
               bytes_of(phase(without, "backward"), Held::Activations));
  EXPECT_GT(activations, 0);
  const std::int64_t of_graphs = bytes_of(phase(with, "save"), Held::Graphs);
  EXPECT_GE(of_graphs, activations);
  EXPECT_LE(of_graphs, activations + kSegment);
  for (const PhasePlan& one : with.phases) {
    const std::int64_t more = one.name == "load" ? 0 : of_graphs;
    EXPECT_EQ(one.total_bytes - phase(without, one.name).total_bytes, more) << one.name;
    EXPECT_EQ(bytes_of(one, Held::Graphs), more) << one.name;
  }
  EXPECT_EQ(with.peak_bytes, without.peak_bytes + of_graphs);
}

TEST(MemoryPlan, RefusesRanksThatTheStrategyDoesNotFit) {
  PlannedRun run = planned_run("llama", 4, sherd::Strategy::HybridShard);
  run.shard_size = 3;
  sherd::test::expect_error([&] { (void)plan_memory(run); }, sherd::ExitCode::Usage,
                            {"shard_size 3 does not divide"});
}

TEST(MetaMeter, CountsWhatIsHeldByWhatAskedForIt) {
  const MetaMeter meter;
  const auto on_meta = at::TensorOptions().device(at::kMeta);
  at::Tensor kept = at::empty({100}, on_meta);
  { const at::Tensor gone = at::empty({50}, on_meta); }
  EXPECT_EQ(meter.held_bytes(), 400);
  EXPECT_EQ(meter.peak_bytes(), 600);
  EXPECT_EQ(meter.at_peak().at("aten::empty"), 600);
  kept = at::Tensor();
  EXPECT_EQ(meter.held_bytes(), 0);
}

TEST(MetaMeter, RoundsAsTheCachingAllocatorOfGpusDoes) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const MetaMeter meter(kCachingPooling);
  const auto on_meta = at::TensorOptions().device(at::kMeta).dtype(at::kByte);
  const at::Tensor small = at::empty({100}, on_meta);
  EXPECT_EQ(meter.held().at("aten::empty"), 100);
  EXPECT_EQ(meter.held_bytes(), 2 * kMiB);  // a segment
  { const at::Tensor large = at::empty({11 * kMiB}, on_meta); }
  EXPECT_EQ(meter.peak_bytes(), 14 * kMiB);
  EXPECT_EQ(meter.held_bytes(), 14 * kMiB);  // it keeps what it has
  EXPECT_EQ(meter.held().at(kKeptItem), 14 * kMiB - 100);
}

struct HeldByAttention {
  std::int64_t after_forward;
  std::int64_t most_in_forward;
  std::int64_t most_in_backward;  // beside what is held after forward

  bool operator==(const HeldByAttention&) const = default;
};

HeldByAttention held_by_attention(
    bool has_alibi, std::int64_t head = 64,
    sherd::ops::AttentionKernel kernel = sherd::ops::AttentionKernel::Auto,
    const sherd::ops::AttentionScores& scores = {}) {
  constexpr std::int64_t kTokens = 300, kHeads = 4, kKeyHeads = 2;
  const sherd::ops::AsOnGpus as_on_gpus;
  MetaMeter meter;
  const auto on_meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const auto heads = [&](std::int64_t count) {
    return at::empty({kTokens, count, head}, on_meta).requires_grad_();
  };
  const at::Tensor query = heads(kHeads), key = heads(kKeyHeads), value = heads(kKeyHeads);
  const at::Tensor slopes = at::empty({kHeads}, on_meta.dtype(at::kFloat));
  const at::Tensor grad = at::empty({kTokens, kHeads * head}, on_meta);
  const std::int64_t before = meter.held_bytes();
  meter.reset_peak();
  const at::Tensor mixed = sherd::ops::attention(
      query, key, value, sherd::ops::Documents::of_equal_length(2, kTokens / 2),
      has_alibi ? std::optional(slopes) : std::nullopt, kernel, scores);
  const std::int64_t after = meter.held_bytes();
  const std::int64_t most = meter.peak_bytes();
  meter.reset_peak();
  mixed.backward(grad);
  return {after - before, most - before, meter.peak_bytes() - after};
}

// In bytes: queries are [300, 4, 64] of 2 bytes, keys and values half as many.
TEST(MemoryPlan, OfAGpuHoldsWhatFusedAttentionTakes) {
  constexpr std::int64_t kQuery = 300 * 4 * 64 * 2, kLogSums = 4 * 300 * 4;
  constexpr std::int64_t kPadded = (300 + 2 * 128) * 4 * 4;  // times the width of a head
  const HeldByAttention plain = held_by_attention(false);
  EXPECT_EQ(plain.after_forward, kQuery + kLogSums);
  EXPECT_EQ(plain.most_in_forward, kQuery + kLogSums);
  EXPECT_EQ(plain.most_in_backward, 2 * kQuery + kPadded * 64 + 2 * kQuery);
  // With columns heads are 72 wide, and are padded to 96.
  constexpr std::int64_t kWide = kQuery * 72 / 64;
  const HeldByAttention alibi = held_by_attention(true);
  EXPECT_EQ(alibi.after_forward, kQuery + kLogSums);
  EXPECT_EQ(alibi.most_in_forward, 3 * kWide + kQuery + kLogSums);
  EXPECT_EQ(alibi.most_in_backward, 2 * kWide + 2 * kWide + 2 * kWide + kPadded * 96 + 2 * kWide);
}

// No fused attention serves a cap. Products compute scores of the window alone.
TEST(MemoryPlan, OfAGpuHoldsScoresWhereTheyAreCapped) {
  using sherd::ops::AttentionKernel;
  EXPECT_EQ(held_by_attention(false, 64, AttentionKernel::Auto, {.soft_cap = 50}),
            held_by_attention(false, 64, AttentionKernel::Plain));
  EXPECT_EQ(held_by_attention(false, 64, AttentionKernel::Auto, {.window = 20}),
            held_by_attention(false, 64));
  EXPECT_LT(held_by_attention(false, 64, AttentionKernel::Plain, {.window = 3}).most_in_forward,
            held_by_attention(false, 64, AttentionKernel::Plain, {.window = 140}).most_in_forward);
}

// Fused attention reads heads in packs of 8 values.
TEST(MemoryPlan, OfAGpuHoldsScoresWhereHeadsAreNoMultipleOf8) {
  for (const bool has_alibi : {false, true}) {
    EXPECT_EQ(held_by_attention(has_alibi, 60),
              held_by_attention(has_alibi, 60, sherd::ops::AttentionKernel::Plain));
    EXPECT_NE(held_by_attention(has_alibi, 64),
              held_by_attention(has_alibi, 64, sherd::ops::AttentionKernel::Plain));
  }
}

// On GPUs the engine's buffers are the allocator's, too.
TEST(MemoryPlan, KeepsBuffersWhereTheAllocatorHoldsThem) {
  PlannedRun run = planned_run("llama", 2, sherd::Strategy::FullShard);
  run.ranks.local_size = 1;
  run.model.shape.hidden_size = 2048;
  run.model.shape.head_size = 1024;
  const std::int64_t in_use = plan_memory(run).peak_bytes;
  run.pooling = kCachingPooling;
  const MemoryPlan plan = plan_memory(run);
  EXPECT_EQ(phase(plan, "optimizer").total_bytes, plan.peak_bytes);
  EXPECT_GE(plan.peak_bytes, in_use);
  EXPECT_LE(plan.peak_bytes, in_use + in_use / 10);  // what is free serves them as well
}

}  // namespace
}  // namespace llm::plan
