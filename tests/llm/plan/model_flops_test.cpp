// How much a model multiplies, beside its shapes and beside what sherd bench counts.

#include "llm/plan/model_flops.h"

#include <string>

#include <gtest/gtest.h>

#include "llm/bench/step_products.h"
#include "llm/setup/load_model.h"

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

}  // namespace
}  // namespace llm::plan
