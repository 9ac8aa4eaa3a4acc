#include "llm/model/alibi.h"

#include <vector>

#include <gtest/gtest.h>

namespace llm::model {
namespace {

std::vector<float> slopes_of(int64_t heads) {
  const at::Tensor slopes = alibi_slopes(heads);
  EXPECT_EQ(slopes.scalar_type(), at::kFloat);
  return {slopes.const_data_ptr<float>(), slopes.const_data_ptr<float>() + slopes.numel()};
}

void expect_slopes(int64_t heads, const std::vector<double>& expected) {
  const std::vector<float> found = slopes_of(heads);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-6 * expected[i]) << heads << " heads, head " << i;
  }
}

TEST(Alibi, SlopesOfAPowerOfTwoAreAGeometricSequence) {
  expect_slopes(1, {0.00390625});
  expect_slopes(4, {0.25, 0.0625, 0.015625, 0.00390625});
  expect_slopes(8, {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625});
  const std::vector<float> sixteen = slopes_of(16);
  EXPECT_NEAR(sixteen[0], 0.70710678, 1e-6);
  EXPECT_NEAR(sixteen[15], 0.00390625, 1e-8);
}

// What build_alibi_tensor of transformers gives for one token at position 1.
TEST(Alibi, OtherNumbersTakeEverySecondSlopeOfTwiceAsManyHeads) {
  expect_slopes(3, {0.0625, 0.00390625, 0.25});
  expect_slopes(6, {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125});
  expect_slopes(12, {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625, 0.70710678,
                     0.35355339, 0.17677670, 0.088388348});
  // BLOOM-176B has 112 heads.
  const std::vector<float> many = slopes_of(112);
  EXPECT_NEAR(many[0], 0.91700404, 1e-6);
  EXPECT_NEAR(many[63], 0.00390625, 1e-8);
  EXPECT_NEAR(many[64], 0.95760328, 1e-6);
  EXPECT_NEAR(many[111], 0.016316778, 1e-7);
}

}  // namespace
}  // namespace llm::model
