// Steps that train adapters: the same bits on any number of ranks, with checkpointed activations
// and without, and with dropout.

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "llm/train/train_step.h"
#include "sherd/fully_shard.h"
#include "tests/llm/model/adapted.h"
#include "tests/llm/model/small_llama.h"
#include "tests/support/ranks.h"

namespace llm::train {
namespace {

constexpr std::int64_t kSamples = 6;  // of a step

// Of one sample, whose length and tokens follow from its number. Fewer rows have a product of their
// own where no gradient is wanted, as in a checkpointed unit's first forward.
inputs::Batch batch_of(std::int64_t sample) {
  inputs::Batch batch;
  for (std::int64_t i = 0; i < 40 + sample % 7; ++i) {
    batch.input_ids.push_back((sample * 11 + i * 5) % model::kVocabulary);
  }
  batch.labels = batch.input_ids;
  batch.bounds.push_back(std::ssize(batch.input_ids));
  batch.numbers.push_back(sample);
  batch.supervised_tokens = std::ssize(batch.labels) - 1;
  return batch;
}

struct AdapterRun {
  int ranks = 1;
  double dropout = 0;
  bool checkpointed = false;
  c10::ScalarType dtype = c10::kFloat;
};

struct AdapterOutcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
};

model::CausalLm adapted_llama(double dropout) {
  model::CausalLm lm = model::make_llama(model::small_llama_config());
  model::add_adapters(lm, {.shape = {.rank = 3, .alpha = 6, .dropout = dropout}});
  return lm;
}

// Three steps without clipping.
AdapterOutcome trained(const AdapterRun& run) {
  AdapterOutcome outcome;
  std::mutex guard;
  std::vector<model::CausalLm> of_ranks;
  for (int rank = 0; rank < run.ranks; ++rank) {
    of_ranks.push_back(adapted_llama(run.dropout));
  }
  sherd::test::run_ranks(run.ranks, [&](const sherd::World& world) {
    const model::CausalLm& lm = of_ranks[static_cast<std::size_t>(world.rank())];
    sherd::ShardOptions options;
    options.precision.param_dtype = run.dtype;
    options.units = sherd::unit_policy::every_unit({.checkpoint_activations = run.checkpointed});
    auto sharded = sherd::fully_shard(lm, sherd::Mesh::shard(world), options);
    sharded.set_gradient_divide_factor(1);
    sherd::AdamW optimizer(sharded, {.lr = 1e-2});
    std::vector<double> losses;
    for (std::int64_t step = 1; step <= 3; ++step) {
      std::vector<inputs::Batch> batches;
      for (std::int64_t i = world.rank(); i < kSamples; i += world.size()) {
        batches.push_back(batch_of(step * 10 + i));
      }
      StepPlan plan{.number = step};
      if (run.dropout > 0) {
        plan.dropout_seed = 5;
      }
      losses.push_back(train_step(sharded, optimizer, nullptr, batches, plan).loss);
    }
    const std::lock_guard lock(guard);
    outcome.losses = losses;
    for (const auto& shard : sharded.parameter_shards()) {
      at::Tensor& whole = outcome.parameters[shard.name];
      if (!whole.defined()) {
        whole = at::zeros({lm->named_parameters()[shard.name].numel()}, shard.value.options());
      }
      whole.slice(0, shard.begin, shard.end).copy_(shard.value);
    }
  });
  return outcome;
}

void expect_same(const AdapterOutcome& found, const AdapterOutcome& expected) {
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-12 * expected.losses[step]);
  }
  for (const auto& [name, value] : expected.parameters) {
    EXPECT_TRUE(at::equal(found.parameters.at(name), value)) << name;
  }
}

class LoraStep : public testing::TestWithParam<std::tuple<double, c10::ScalarType>> {};
INSTANTIATE_TEST_SUITE_P(DropoutAndDtype, LoraStep,
                         testing::Combine(testing::Values(0.0, 0.3),
                                          testing::Values(c10::kFloat, c10::kBFloat16)));

TEST_P(LoraStep, HasTheSameBitsOnAnyNumberOfRanks) {
  const auto [dropout, dtype] = GetParam();
  const AdapterOutcome alone = trained({.dropout = dropout, .dtype = dtype});
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    expect_same(trained({.ranks = ranks, .dropout = dropout, .dtype = dtype}), alone);
  }
}

TEST_P(LoraStep, HasTheSameBitsWithCheckpointedActivations) {
  const auto [dropout, dtype] = GetParam();
  expect_same(trained({.dropout = dropout, .checkpointed = true, .dtype = dtype}),
              trained({.dropout = dropout, .dtype = dtype}));
}

TEST(LoraStepWithDropout, IsAnotherStep) {
  EXPECT_NE(trained({.dropout = 0.3}).losses, trained({}).losses);
}

TEST(LoraStepOfAFrozenBase, LearnsAndLeavesTheBaseAlone) {
  const AdapterOutcome outcome = trained({});
  const model::CausalLm lm = adapted_llama(0);
  for (const auto& item : lm->named_parameters()) {
    const bool is_adapter = item.key().find("lora_") != std::string::npos;
    EXPECT_EQ(at::equal(outcome.parameters.at(item.key()), item.value().detach().reshape({-1})),
              !is_adapter)
        << item.key();
  }
}

}  // namespace
}  // namespace llm::train
