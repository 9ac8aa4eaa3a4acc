#include "ops/rms_norm.h"

#include <ATen/ops/full.h>
#include <ATen/ops/rms_norm.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

class RmsNormTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, RmsNormTest, dtypes(), dtype_name);

at::Tensor plain_rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  return input * (input.square().mean(-1, true) + epsilon).rsqrt() * weight;
}

void check_rms_norm(const std::vector<std::vector<int64_t>>& shapes, c10::ScalarType dtype) {
  expect_parity([](const Tensors& in) { return ops::rms_norm(in[0], in[1], 1e-5); },
                [](const Tensors& in) { return plain_rms_norm(in[0], in[1], 1e-5); },
                random_leaves(shapes, dtype));
}

TEST_P(RmsNormTest, AgreesOnMatrices) {
  check_rms_norm({{9, 7}, {7}}, GetParam());
}
TEST_P(RmsNormTest, AgreesOnBatches) {
  check_rms_norm({{2, 13, 33}, {33}}, GetParam());
}
TEST_P(RmsNormTest, AgreesWithoutRows) {
  check_rms_norm({{0, 3, 8}, {8}}, GetParam());
}

TEST_P(RmsNormTest, OfASumAgrees) {
  expect_parity(
      [](const Tensors& in) {
        const auto [sum, normalised] = add_rms_norm(in[0].transpose(0, 1), in[1], in[2], 1e-5);
        return sum + normalised * 2;
      },
      [](const Tensors& in) {
        const at::Tensor sum = in[0].transpose(0, 1) + in[1];
        return sum + plain_rms_norm(sum, in[2], 1e-5) * 2;
      },
      random_leaves({{5, 3, 33}, {3, 5, 33}, {33}}, GetParam()));
}

TEST_P(RmsNormTest, OfASumAgreesWhereOneOutputIsNotUsed) {
  const Tensors leaves = random_leaves({{4, 40}, {4, 40}, {40}}, GetParam());
  expect_parity(
      [](const Tensors& in) { return add_rms_norm(in[0], in[1], in[2], 1e-5).normalised; },
      [](const Tensors& in) { return plain_rms_norm(in[0] + in[1], in[2], 1e-5); },
      leaves_as(leaves, GetParam()));
  expect_parity([](const Tensors& in) { return add_rms_norm(in[0], in[1], in[2], 1e-5).sum; },
                [](const Tensors& in) { return in[0] + in[1] + in[2] * 0; }, leaves);
}

TEST_P(RmsNormTest, AgreesWithAWeightThatCountsFromOne) {
  for (const auto& shapes : {Shapes{{9, 7}, {7}}, Shapes{{2, 13, 33}, {33}}}) {
    expect_parity(
        [](const Tensors& in) { return ops::rms_norm(in[0], in[1], 1e-5, RmsGain::OnePlus); },
        [](const Tensors& in) { return plain_rms_norm(in[0], in[1] + 1, 1e-5); },
        random_leaves(shapes, GetParam()));
    expect_parity(
        [](const Tensors& in) { return ops::rms_norm(in[0], in[1], 1e-5, RmsGain::Wide); },
        [](const Tensors& in) { return plain_rms_norm(in[0], in[1], 1e-5); },
        random_leaves(shapes, GetParam()));
  }
}

TEST(RmsNorm, EpsilonKeepsZeroRowsFinite) {
  const at::Tensor weight = at::full({4}, 1.0, at::kFloat);
  EXPECT_EQ(
      ops::rms_norm(at::full({1, 4}, 0.0, at::kFloat), weight, 1e-5).abs().max().item<float>(), 0);
}

TEST(RmsNorm, RoundsBeforeTheProductWithTheWeight) {
  const at::Tensor input = at::randn({16, 64}, at::kFloat).to(at::kBFloat16);
  const at::Tensor weight = at::randn({64}, at::kFloat).to(at::kBFloat16);
  const at::Tensor wide = input.to(at::kFloat);
  const at::Tensor normalised =
      (wide * (wide.square().mean(-1, true) + 1e-5).rsqrt()).to(at::kBFloat16);
  const at::Tensor unequal = ops::rms_norm(input, weight, 1e-5).ne(weight * normalised);
  // A mean whose last bit differs may fall on the other side of a tie; rounding only once would
  // change every fourth value or so.
  EXPECT_LE(unequal.sum().item<int64_t>(), unequal.numel() / 100);
}

TEST(RmsNorm, RoundsOnceWhereTheWeightIsAppliedInFp32) {
  const at::Tensor input = at::randn({16, 64}, at::kFloat).to(at::kBFloat16);
  const at::Tensor weight = at::randn({64}, at::kFloat).to(at::kBFloat16);
  const at::Tensor wide = input.to(at::kFloat);
  const at::Tensor normalised = wide * (wide.square().mean(-1, true) + 1e-5).rsqrt();
  for (const bool one_plus : {false, true}) {
    const at::Tensor factor = weight.to(at::kFloat) + (one_plus ? 1 : 0);
    const at::Tensor found =
        ops::rms_norm(input, weight, 1e-5, one_plus ? RmsGain::OnePlus : RmsGain::Wide);
    const at::Tensor unequal = found.ne((normalised * factor).to(at::kBFloat16));
    EXPECT_LE(unequal.sum().item<int64_t>(), unequal.numel() / 100);
  }
}

}  // namespace
}  // namespace sherd::ops
