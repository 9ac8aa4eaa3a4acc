#include "llm/model/rope.h"

#include <cmath>
#include <numbers>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

namespace llm::model {
namespace {

TEST(Rope, FrequenciesFallFromOneByTheta) {
  const at::Tensor frequencies = rope_frequencies({.theta = 10'000}, 8);
  ASSERT_EQ(frequencies.sizes(), at::IntArrayRef({4}));
  for (int i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(frequencies[i].item<float>(), static_cast<float>(std::pow(1e4, -i / 4.0)));
  }
}

TEST(Rope, Llama3ScalingStretchesSlowBlendsMiddleAndKeepsFastFrequencies) {
  const RopeConfig plain{.theta = 500'000};
  RopeConfig scaled = plain;
  scaled.scaling = Llama3Scaling{
      .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context_tokens = 64};
  const at::Tensor before = rope_frequencies(plain, 16), after = rope_frequencies(scaled, 16);
  int kept = 0, blended = 0, stretched = 0;
  for (int i = 0; i < 8; ++i) {
    const double frequency = before[i].item<float>();
    const double turns = 64 * frequency / (2 * std::numbers::pi);
    const double share = (turns - 1) / 3;
    const double expected = turns > 4   ? frequency
                            : turns < 1 ? frequency / 8
                                        : (1 - share) * frequency / 8 + share * frequency;
    EXPECT_FLOAT_EQ(after[i].item<float>(), static_cast<float>(expected));
    (turns > 4 ? kept : turns < 1 ? stretched : blended) += 1;
  }
  EXPECT_TRUE(kept > 0 && blended > 0 && stretched > 0);
}

TEST(Rope, TablesGrowOnDemandAndAgree) {
  RopeCache cache({}, 8, 64);
  const at::Tensor first = cache.tables(5, at::kCPU).cosine.clone();
  EXPECT_EQ(cache.tables(40, at::kCPU).sine.size(0), 40);
  EXPECT_TRUE(cache.tables(5, at::kCPU).cosine.equal(first));
}

}  // namespace
}  // namespace llm::model
