// How much a model multiplies, beside its shapes and beside what sherd bench counts.

#include "llm/plan/model_flops.h"

#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "llm/bench/step_products.h"
#include "llm/plan/kernels.h"
#include "llm/setup/load_model.h"
#include "llm/setup/trainable_parameters.h"

namespace llm::plan {
namespace {

const std::string kLlama = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";
const std::string kBloom = SHERD_TEST_SOURCE_DIR "/recipes/models/small-bloom";

ModelFlops flops_of(const setup::ModelShape& shape) {
  return model_flops(*shape.shapes, shape.config.shape);
}

TEST(ModelFlops, AreSixForAWeightAndToken) {
  const ModelFlops flops = flops_of(setup::model_shape(kLlama));
  // Of five layers: query and output, key and value of half as many heads, three of the MLP.
  constexpr double kWeights = 5.0 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 172);
  EXPECT_EQ(flops.a_token, 6 * kWeights);
  EXPECT_EQ(flops.a_supervised_token, 6.0 * 64 * 512);
  EXPECT_EQ(flops.a_pair, 12.0 * 5 * 64);  // layers and width: PaLM's 12·L·H·Q
  EXPECT_EQ(flops.of(10, 2, 55),
            10 * flops.a_token + 2 * flops.a_supervised_token + 55 * flops.a_pair);
}

TEST(ModelFlops, OfAFrozenWeightAreThoseTowardsItsInput) {
  setup::ModelShape shape = setup::model_shape(kLlama);
  setup::freeze_all_but(*shape.shapes, {"model.layers.4.*"});
  const ModelFlops flops = flops_of(shape);
  constexpr double kQuery = 64.0 * 64, kLayer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 172;
  // Four layers forward alone; of the last one's first weight nobody wants the input's gradient.
  EXPECT_EQ(flops.a_token, 2 * (4 * kLayer + 3 * kLayer - kQuery));
  EXPECT_EQ(flops.a_supervised_token, 4.0 * 64 * 512);  // a frozen head
  EXPECT_EQ(flops.a_pair, 4.0 * 64 * (5 + 2));
  setup::freeze_all_but(*shape.shapes, {"model.layers.0.input_layernorm.weight"});
  EXPECT_EQ(flops_of(shape).a_pair, 4.0 * 64 * (5 + 2 * 4));
}

TEST(ModelFlops, AreWhatABenchCounts) {
  for (const std::string& folder : {kLlama, kBloom}) {
    const setup::ModelShape shape = setup::model_shape(folder);
    bench::BenchOptions options;
    options.sequence = 63;
    options.micro_batch = 2;
    options.accumulation = 3;
    options.answers_only = true;
    const double samples = 2 * 3;
    const auto count = [&](double each) { return static_cast<std::int64_t>(samples * each); };
    EXPECT_DOUBLE_EQ(flops_of(shape).of(count(63), count(bench::kAnswerTokens), count(63 * 64 / 2)),
                     bench::matmul_operations(bench::step_products(shape.config, options)));
  }
}

TEST(ModelFlops, OfWindowsAreWhatABenchCounts) {
  setup::ModelShape shape = setup::model_shape(kLlama);
  shape.config.shape.window = 16;
  shape.config.shape.layers_with_window = {0, 3};
  bench::BenchOptions options;
  options.sequence = 63;
  // Of 16 tokens all pairs, of the 47 after them 16 each: 888 of the 2016 that causality leaves.
  const double pairs = (3 * 2016.0 + 2 * 888) / 5;
  EXPECT_EQ(shape.config.shape.seen_pairs(63), pairs);
  const ModelFlops flops = flops_of(shape);
  const double of_bench = bench::matmul_operations(bench::step_products(shape.config, options));
  const double samples = static_cast<double>(options.micro_batch * options.accumulation);
  const double others = samples * (63 * flops.a_token + 62 * flops.a_supervised_token);
  EXPECT_NEAR(of_bench - others, samples * pairs * flops.a_pair,
              samples * 63 * flops.a_pair * 2 / 5);
}

TEST(AttentionOperations, AreThoseOfTheWindow) {
  const at::Tensor query = at::empty({13, 2, 4}, at::kMeta);
  const auto operations = [&](std::int64_t window) {
    const std::vector<c10::IValue> arguments = {query, std::vector<std::int64_t>{0, 3, 13}, window};
    return attention_operations(
        c10::ArrayRef<const c10::IValue>(arguments.data(), arguments.size()));
  };
  EXPECT_EQ(operations(0), 4 * 8 * (9 + 100) / 2.0);
  EXPECT_EQ(operations(4), 4 * 8 * (9 + 100 - 36) / 2.0);
}

}  // namespace
}  // namespace llm::plan
