// How long a planned step takes: its operators, and what links hold up.

#include "llm/plan/step_time.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "llm/model/dpo.h"
#include "llm/plan/moved_bytes.h"
#include "llm/plan/operator_watch.h"
#include "llm/plan/run_plan.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"
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
    auto real = setup::random_sharded(run.model, sherd::Mesh::shard(sherd::World::alone()),
                                      run.sharding, 1);
    const auto planned = amounts_of([&] { loss_of(on_meta, run.micro_batches[0]).backward(); });
    const auto computed =
        amounts_of([&] { setup::loss_sum(real, setup::to_tensors(real_batch())).backward(); });
    for (const auto& [kind, amount] : computed) {
      if (amount > 0) {
        ASSERT_TRUE(planned.contains(kind)) << kind;
        EXPECT_DOUBLE_EQ(planned.at(kind), amount) << kind;
      }
    }
    EXPECT_GT(computed.at("linear_backward float32"), computed.at("linear float32"));
  }
}

// The head twice, and with a fresh adapter one more forward.
TEST(OperatorWatch, SeesOnMetaWhatPairsCompute) {
  PlannedRun run = planned_run("llama", 1, sherd::Strategy::FullShard);
  for (const bool has_adapter : {false, true}) {
    SCOPED_TRACE(has_adapter);
    if (has_adapter) {
      config::RunConfig config;
      config.adapter.kind = config::AdapterKind::Lora;
      run.prepare = setup::preparation_of(config);
    }
    const model::CausalLm module = meta_module(run);
    auto on_meta = meta_model(module, run);
    auto real = setup::random_sharded(run.model, sherd::Mesh::shard(sherd::World::alone()),
                                      run.sharding, 1, run.prepare);
    model::TokenBatch batch = setup::to_tensors(real_batch());
    if (!has_adapter) {
      batch.reference_logps_N = setup::logps(real, batch);
    }
    const auto planned = amounts_of([&] {
      loss_of(on_meta, run.micro_batches[0], {true, has_adapter}).backward();
    });
    const auto computed =
        amounts_of([&] { setup::objective_sum(real, batch, model::Dpo({})).loss_sum.backward(); });
    for (const auto& [kind, amount] : computed) {
      if (amount > 0) {
        ASSERT_TRUE(planned.contains(kind)) << kind;
        EXPECT_DOUBLE_EQ(planned.at(kind), amount) << kind;
      }
    }
    const double supervised = plan_step_time(run, products_at(1e9), {}).step_seconds;
    PlannedRun of_pairs = run;
    of_pairs.loss = {true, has_adapter};
    EXPECT_GT(plan_step_time(of_pairs, products_at(1e9), {}).step_seconds,
              (has_adapter ? 1.3 : 1.02) * supervised);
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

// Llama 3 8B in bfloat16 on a GPU, `layers` of it.
PlannedRun llama_on(int ranks, std::int64_t samples, std::int64_t tokens, std::int64_t layers) {
  PlannedRun run = planned_run("llama", ranks, sherd::Strategy::FullShard);
  run.model.shape = {.hidden_size = 4096,
                     .feed_forward_size = 14336,
                     .layers = layers,
                     .heads = 32,
                     .key_heads = 8,
                     .head_size = 128,
                     .vocab_size = 128256,
                     .context_length = 8192,
                     .norm_epsilon = 1e-5,
                     .tied_embedding = false,
                     .rope = model::RopeConfig{}};
  run.ranks = {.size = ranks, .local_size = std::min(ranks, 8), .device = c10::DeviceType::CUDA};
  run.sharding.precision.param_dtype = c10::kBFloat16;
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(samples), tokens);
  run.micro_batches = {{lengths, lengths}};
  return run;
}

StepTime time_on(const char* name, const PlannedRun& run) {
  const PathOfPlan path(run.ranks.device);
  const Device& device = device_of_name(name);
  const int hosts = run.ranks.size / run.ranks.local_size;
  return plan_step_time(run, rates_of(device, {run.ranks.local_size, 1}),
                        links_of(device, hosts, run.ranks.local_size, std::nullopt));
}

// Of what a device may reach: products at 798 TFLOP/s, and what is beside them at 4.3 (H200) or 3.0
// TB/s.
struct Ceilings {
  double bytes_per_second;
  double attention, attention_backward;  // TFLOP/s, of cuDNN at the documents' length
};

double floor_seconds(const PlannedRun& run, const Ceilings& at) {
  constexpr double kProducts = 798e12, kTera = 1e12;
  const PathOfPlan path(run.ranks.device);
  auto model = meta_model(meta_module(run), run);
  double seconds = 0;
  {
    const OperatorWatch watch([&](const OperatorCall& call) {
      const bool is_product = call.kind.find("linear") != std::string::npos;
      const double rate = call.kind.starts_with("attention_backward")
                              ? at.attention_backward * kTera
                          : call.kind.starts_with("attention") ? at.attention * kTera
                                                               : kProducts;
      const bool multiplies = is_product || call.kind.starts_with("attention");
      seconds += (multiplies ? call.amount / rate : 0) + call.moved_bytes / at.bytes_per_second;
    });
    loss_of(model, run.micro_batches[0]).backward();
  }
  double elements = 0;
  for (const at::Tensor& parameter : meta_module(run)->parameters()) {
    elements += static_cast<double>(parameter.numel());
  }
  return seconds +
         elements * (update_bytes_a_parameter(run) + sum_bytes(run, 1, 1)) / at.bytes_per_second;
}

// What a step takes at least, as it was computed apart from this. That counted no addition outside
// of a kernel; here they are some 2 %. Each layer takes as long.
TEST(StepTime, OfLlama3On1GpuCountsWhatItsFloorCounts) {
  constexpr std::int64_t kTokens = 8192, kLayers = 32;
  constexpr Ceilings kH200{4.3e12, 644, 541}, kH200Short{4.3e12, 484, 370};
  constexpr Ceilings kH100{3.0e12, 644, 541}, kH100Short{3.0e12, 484, 370};
  const auto tokens_a_second = [&](const Ceilings& at, std::int64_t length, auto... changes) {
    const auto seconds = [&](std::int64_t layers) {
      PlannedRun run = llama_on(1, kTokens / length, length, layers);
      (changes(run), ...);
      return floor_seconds(run, at);
    };
    const double one = seconds(1), layer = seconds(2) - one;
    return static_cast<double>(kTokens) / (one + (kLayers - 1) * layer);
  };
  const auto narrow_moments = [](PlannedRun& run) { run.adamw.moments_dtype = c10::kBFloat16; };
  const auto all_bf16 = [&](PlannedRun& run) {
    narrow_moments(run);
    run.sharding.precision.master = sherd::Master::BFloat16;
    run.sharding.precision.reduce_dtype = c10::kBFloat16;
  };
  const auto within = [](double planned, double floor) {
    EXPECT_NEAR(planned / floor, 1, 0.045) << planned << " beside " << floor;
  };
  within(tokens_a_second(kH200, 8192), 12'400);
  within(tokens_a_second(kH200Short, 2048), 13'900);
  within(tokens_a_second(kH200, 8192, narrow_moments), 12'700);
  within(tokens_a_second(kH100, 8192), 11'850);
  within(tokens_a_second(kH100Short, 2048), 13'200);
  within(tokens_a_second(kH100, 8192, all_bf16), 12'500);
}

TEST(StepTime, OfCheckpointedLayersComputesTheirForwardAgain) {
  PlannedRun run = llama_on(1, 1, 1024, 2);
  const double kept = plan_step_time(run, products_at(1e12), {}).step_seconds;
  run.sharding.units = sherd::unit_policy::every_unit({.checkpoint_activations = true});
  const double layers = 2 * (2 * 218.1e6 + 4 * 512 * 4096) * 1024 / 1e12;
  EXPECT_NEAR((plan_step_time(run, products_at(1e12), {}).step_seconds - kept) / layers, 1, 1e-3);
}

// As docs/design/gpu-kernels.md has them.
TEST(StepTime, OfTheOptimizerIsWhatItMoves) {
  PlannedRun run = llama_on(1, 1, 1024, 1);
  const auto moved = [&](sherd::Master master, c10::ScalarType moments, c10::ScalarType gradient) {
    run.sharding.precision.master = master;
    run.adamw.moments_dtype = moments;
    run.sharding.precision.reduce_dtype = gradient;
    return update_bytes_a_parameter(run);
  };
  using sherd::Master;
  EXPECT_EQ(moved(Master::Float32, c10::kFloat, c10::kFloat), 30);
  EXPECT_EQ(moved(Master::Float32, c10::kFloat, c10::kBFloat16), 28);
  EXPECT_EQ(moved(Master::Split, c10::kFloat, c10::kFloat), 28);
  EXPECT_EQ(moved(Master::Split, c10::kBFloat16, c10::kBFloat16), 18);
  EXPECT_EQ(moved(Master::BFloat16, c10::kFloat, c10::kFloat), 24);
  EXPECT_EQ(moved(Master::BFloat16, c10::kBFloat16, c10::kBFloat16), 14);
  run.sharding.precision.param_dtype = std::nullopt;
  EXPECT_EQ(moved(Master::Float32, c10::kFloat, c10::kFloat), 28);
}

// While a layer computes the next one is gathered; in backward the one before it is summed, too.
// Nothing computes beside the root's gather and the first layer's, nor beside the root's sum.
TEST(StepTime, OnManyGpusIsWhatLayersComputeOrWaitFor) {
  constexpr std::int64_t kLayers = 6, kWidth = 4096;
  constexpr double kLayer = 218.1e6, kTable = 525.3e6, kFlops = 798e12, kBytes = 2;
  constexpr double kNvlink = 360e9, kAdapter = 45e9;
  for (const int ranks : {1, 8, 64}) {
    for (const std::int64_t samples : {1, 8}) {
      const double tokens = 1024.0 * static_cast<double>(samples);
      const auto gather = [&](double parameters) {
        return kBytes * parameters * (ranks - 1) / ranks / kNvlink;
      };
      const auto reduce = [&](double parameters) {  // to each rank its part, straight
        const double sent = kBytes * parameters / ranks;
        return std::max(std::min(7, ranks - 1) * sent / kNvlink,
                        std::max(0, ranks - 8) * sent / kAdapter);
      };
      const double forward = (2 * kLayer * tokens + 4 * tokens * 1024 / 2 * kWidth) / kFlops;
      const double expected =
          gather(2 * kTable) + gather(kLayer) + kLayers * std::max(forward, gather(kLayer)) +
          6 * kTable * tokens / kFlops +
          kLayers * std::max(2 * forward, gather(kLayer) + reduce(kLayer)) + reduce(2 * kTable);
      const PlannedRun run = llama_on(ranks, samples, 1024, kLayers);
      const StepTime planned =
          plan_step_time(run, products_at(kFlops),
                         {.rank_bytes_per_second = kNvlink, .host_bytes_per_second = 8 * kAdapter});
      EXPECT_NEAR(planned.step_seconds / expected, 1, 0.05) << ranks << " ranks, " << tokens;
    }
  }
}

// Two hosts of two: in rank order each of a host's two ranks sends its piece to two others, by a
// ring each host sends sums of two pieces.
TEST(StepTime, OfNativeReduceScatterSendsTheSumsOfAHost) {
  const double rate = 1e5;
  PlannedRun run = planned_run("llama", 4, sherd::Strategy::FullShard);
  run.ranks.device = c10::DeviceType::CUDA;
  run.sharding.precision.param_dtype = c10::kBFloat16;
  const auto crossed = [&](int ranks_of_host, sherd::ReduceScatter way, c10::ScalarType sum) {
    run.ranks.local_size = ranks_of_host;
    run.ranks.reduce_scatter = way;
    run.sharding.precision.reduce_dtype = sum;
    return plan_step_time(run, products_at(1e15), {.host_bytes_per_second = rate})
               .exposed_communication_seconds *
           rate;
  };
  using enum sherd::ReduceScatter;
  const double piece = elements_of(run) / 4;
  const auto expect_less = [&](int ranks_of_host, c10::ScalarType sum, double bytes) {
    EXPECT_NEAR(
        (crossed(ranks_of_host, RankOrder, sum) - crossed(ranks_of_host, Native, sum)) / piece,
        bytes, 0.02)
        << ranks_of_host << " of a host, " << sum;
  };
  expect_less(2, c10::kBFloat16, (4 - 2) * 2);
  expect_less(2, c10::kFloat, 4 * 2 - 2 * 4);
  expect_less(1, c10::kBFloat16, 0);
  expect_less(1, c10::kFloat, 3 * 2 - 3 * 4);
}

TEST(StepTime, OfSumsIsWhatTheyMove) {
  PlannedRun run = planned_run("llama", 8, sherd::Strategy::FullShard);
  run.ranks.device = c10::DeviceType::CUDA;
  const auto moved = [&](sherd::ReduceScatter way, c10::ScalarType part, c10::ScalarType sum) {
    run.ranks.reduce_scatter = way;
    run.sharding.precision.param_dtype = part;
    run.sharding.precision.reduce_dtype = sum;
    return sum_bytes(run, 8, 1);
  };
  using enum sherd::ReduceScatter;
  EXPECT_EQ(moved(RankOrder, c10::kBFloat16, c10::kFloat), 8 * 2 + 4);
  EXPECT_EQ(moved(Native, c10::kBFloat16, c10::kFloat), 8 * (2 + 4) + 4 + 4);
  EXPECT_EQ(moved(RankOrder, c10::kBFloat16, c10::kBFloat16), 8 * 2 + 2);
  EXPECT_EQ(moved(Native, c10::kBFloat16, c10::kBFloat16), 2 + 2);
  run.micro_batches.push_back(run.micro_batches.front());
  EXPECT_EQ(moved(Native, c10::kFloat, c10::kFloat), 2 * (4 + 4) + 4);
}

// Heads of 68 grow to 76. Forward copies all three and what comes out; backward all three, what
// came out and its gradient.
TEST(StepTime, OfAlibiOnAGpuCopiesHeads) {
  PlannedRun run = planned_run("bloom", 1, sherd::Strategy::FullShard);
  run.sharding.precision.param_dtype = c10::kBFloat16;
  Rates rates;
  rates.bytes_per_second = 1;
  const auto bytes = [&] { return plan_step_time(run, rates, {}).step_seconds; };
  const double without = bytes();
  EXPECT_EQ(alibi_columns(run, 300, false).share, 1);
  run.ranks.device = c10::DeviceType::CUDA;
  constexpr double kHeads = 2 * 300;
  const double forward = 2 * kHeads * (3 * (68 + 76) + 2 * 68);
  const double backward = 2 * kHeads * 5 * (68 + 76);
  EXPECT_EQ(alibi_columns(run, 300, false).moved_bytes, forward);
  EXPECT_EQ(alibi_columns(run, 300, true).moved_bytes, backward);
  EXPECT_EQ(alibi_columns(run, 300, true).share, 76.0 / 68);
  PlannedRun plain = run;
  plain.attention = sherd::ops::AttentionKernel::Plain;  // needs no copies
  EXPECT_EQ(alibi_columns(plain, 300, true).moved_bytes, 0);
  EXPECT_NEAR(bytes() - without, 3 * (forward + backward) + sum_bytes(run, 1, elements_of(run)), 1);
  PlannedRun rotary = planned_run("llama", 1, sherd::Strategy::FullShard);
  rotary.ranks.device = c10::DeviceType::CUDA;
  rotary.sharding.precision.param_dtype = c10::kBFloat16;
  EXPECT_EQ(alibi_columns(rotary, 300, false).moved_bytes, 0);
}

// Three products of a layer fewer each way, and none of the sums of their inputs' gradients; values
// and gradients of queries, keys and values are copied. SwiGLU's product and gradients share
// passes.
TEST(StepTime, OnAGpuTakesWeightsSideBySideAtOnce) {
  const PlannedRun run = llama_on(1, 1, 128, 2);
  const auto calls_of = [&](c10::DeviceType device) {
    const PathOfPlan path(device);
    std::map<std::string, double> calls;
    auto model = meta_model(meta_module(run), run);
    const OperatorWatch watch([&](const OperatorCall& call) {
      const std::string name = call.kind.substr(0, call.kind.find(' '));
      ++calls[name];
      calls[name + " amount"] += call.amount;
      calls["bytes"] += call.moved_bytes;
    });
    loss_of(model, run.micro_batches[0]).backward();
    return calls;
  };
  auto apart = calls_of(c10::DeviceType::CPU), joined = calls_of(c10::DeviceType::CUDA);
  EXPECT_EQ(apart["linear"] - joined["linear"], 2 * 3);
  EXPECT_EQ(apart["linear_backward"] - joined["linear_backward"], 2 * 3);
  EXPECT_EQ(apart["linear amount"], joined["linear amount"]);
  EXPECT_EQ(apart["linear_backward amount"], joined["linear_backward amount"]);
  constexpr double kElement = 2, kTokens = 128, kWidth = 4096, kKeys = 1024, kInner = 14336;
  const double sums = 3 * 3 * kWidth, copies = 2 * kKeys + 2 * (kWidth + 2 * kKeys);
  EXPECT_EQ(apart["bytes"] - joined["bytes"],
            2 * kElement * kTokens * (sums - copies + 2 * kInner));
}

// Of a parameter what AdamW does not keep on the device goes both ways at once, beside the update.
TEST(StepTime, OfMastersAndMomentsOnTheHostWaitsForTheirLink) {
  PlannedRun run = llama_on(1, 1, 128, 1);
  const double rate = 1e6, elements = elements_of(run);
  const auto waited = [&] {
    return plan_step_time(run, products_at(1e15), {.pinned_bytes_per_second = rate})
        .exposed_communication_seconds;
  };
  EXPECT_EQ(waited(), 0);
  run.sharding.offload.optimizer_on_host = true;
  const auto expect_bytes = [&](double bytes) {
    EXPECT_EQ(resting_bytes_a_parameter(run), bytes);
    EXPECT_NEAR(static_cast<double>(plan_memory(run).host_bytes) / elements, bytes, 1e-3);
    EXPECT_NEAR(waited() * rate / elements, bytes, 1e-3);
  };
  expect_bytes(4 + 8);
  run.sharding.precision.master = sherd::Master::Split;
  expect_bytes(2 + 8);
  run.adamw.moments_dtype = c10::kBFloat16;
  expect_bytes(2 + 4);
  run.sharding.precision.master = sherd::Master::BFloat16;
  expect_bytes(4);
  Rates rates = products_at(1e15);
  rates.bytes_per_second = 1e6;  // the update takes longer
  EXPECT_EQ(
      plan_step_time(run, rates, {.pinned_bytes_per_second = 1e6}).exposed_communication_seconds,
      0);
}

TEST(StepTime, OfParametersAndGradientsOnTheHostWaitsForTheirLink) {
  PlannedRun run = llama_on(1, 1, 128, 2);
  run.micro_batches.push_back(run.micro_batches.front());
  const double rate = 1e6, elements = elements_of(run);
  const auto bytes_waited_for = [&] {
    return plan_step_time(run, products_at(1e15), {.pinned_bytes_per_second = rate})
               .exposed_communication_seconds *
           rate / elements;
  };
  run.sharding.offload.parameters_on_host = true;
  EXPECT_NEAR(bytes_waited_for(), 2 * (2 + 2) + 2, 1e-3);
  run.sharding.offload = {.gradients_on_host = true};
  EXPECT_NEAR(bytes_waited_for(), 4 + 4 + 4, 1e-3);  // out, both ways, and for the update
  run.sharding.offload = {
      .optimizer_on_host = true, .parameters_on_host = true, .gradients_on_host = true};
  EXPECT_NEAR(bytes_waited_for(), 2 + 4 + 2 + (2 + 4) + (4 + 8 + 2 + 4), 1e-3);
  // The step waits for the whole update of what is kept there, however long its forward takes.
  run.sharding.offload = {.optimizer_on_host = true};
  const Rates slow = products_at(1e8);
  const Links links{.pinned_bytes_per_second = rate};
  EXPECT_NEAR(plan_step_time(run, slow, links).exposed_communication_seconds * rate / elements,
              4 + 8, 1e-3);
  EXPECT_EQ(disk_bytes_a_parameter(run), 0);
  // From a disk as much comes; the host waits for pages, both ways one after the other.
  run.ranks.device = c10::DeviceType::CUDA;
  run.sharding.offload = {.optimizer_folder = "disk"};
  EXPECT_GT(plan_step_time(run, slow, links).exposed_communication_seconds * rate / elements,
            2 * (4 + 8) - 1);
  run.sharding.offload = {
      .optimizer_folder = "disk", .gradient_folder = "disk", .parameter_folder = "disk"};
  EXPECT_NEAR(bytes_waited_for(), 2 + 4 + 2 + (2 + 4) + (2 * (4 + 8 + 2) + 4), 1e-3);
  EXPECT_EQ(disk_bytes_a_parameter(run), 2 * (4 + 8) + (4 + 4 + 4 + 4) + (2 * (2 + 2) + 2 + 2));
}

TEST(StepTime, OfActivationsOnTheHostWaitsForThemBothWays) {
  PlannedRun run = llama_on(1, 1, 1024, 2);
  run.micro_batches.push_back(run.micro_batches.front());
  run.sharding.offload.activations_on_host = true;
  const auto bytes = static_cast<double>(plan_memory(run).host_bytes);
  EXPECT_GT(bytes, 2.0 * 2 * 1024 * (4096 + 2 * 14336));  // a layer's input, gate and up
  const auto time = [&](double rate, double products) {
    return plan_step_time(run, products_at(products), {.pinned_bytes_per_second = rate});
  };
  const double rate = 1e6;
  EXPECT_NEAR(time(rate, 1e15).exposed_communication_seconds * rate / (2 * 2 * bytes), 1, 1e-3);
  EXPECT_EQ(time(1e12, 1e12).exposed_communication_seconds, 0);
}

// A layer's gather is hidden behind F ÷ B tokens: 2,200 within a host of 360 GB/s.
TEST(StepTime, HidesCommunicationBehindEnoughTokens) {
  const auto exposed_by_layers = [](int ranks, std::int64_t tokens) {
    const auto exposed = [&](std::int64_t layers) {
      return time_on("h100-80g", llama_on(ranks, 1, tokens, layers)).exposed_communication_seconds;
    };
    return (exposed(6) - exposed(2)) / 4;  // what is before the first and after the last cancels
  };
  EXPECT_EQ(time_on("h100-80g", llama_on(1, 1, 512, 2)).exposed_communication_seconds, 0);
  EXPECT_LT(exposed_by_layers(8, 4096), 20e-6);  // a message
  EXPECT_GT(exposed_by_layers(8, 512), 1e-3);
  EXPECT_GT(exposed_by_layers(1024, 4096), exposed_by_layers(64, 4096));
}

}  // namespace
}  // namespace llm::plan
