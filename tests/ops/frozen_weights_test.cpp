// Of a frozen weight no operator computes the gradient, and no linear map keeps its input.

#include <functional>

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/swiglu_linear.h"
#include "tests/ops/parity.h"
#include "tests/support/allocated_bytes.h"

namespace sherd::ops {
namespace {

// Two rows and large weights: what is as large as a weight is its gradient.
constexpr int64_t kStepRows = 2, kWeightInputs = 300, kWeightOutputs = 500;
constexpr int64_t kStepWeightBytes = kWeightInputs * kWeightOutputs * 4;

struct TriedStep {
  const char* name;
  std::function<at::Tensor(const at::Tensor& input, const at::Tensor& weight)> forward;
};

const std::vector<TriedStep>& tried_steps() {
  static const std::vector<TriedStep> all = {
      {"linear", [](const auto& x, const auto& w) { return ops::linear(x, w).sum(); }},
      {"linear_after_norm",
       [](const auto& x, const auto& w) { return linear_after_norm(x, w).sum(); }},
      {"linears_after_norm",
       [](const auto& x, const auto& w) {
         const auto outputs = linears_after_norm(x, {w, w}, {});
         return outputs[0].sum() + outputs[1].sum();
       }},
      {"swiglu_linear", [](const auto& x, const auto& w) { return swiglu_linear(x, x, w).sum(); }},
      {"geglu_linear", [](const auto& x, const auto& w) { return geglu_linear(x, x, w).sum(); }},
      {"linear_cross_entropy",
       [](const auto& x, const auto& w) {
         return linear_cross_entropy(x, w, at::randint(9, {kStepRows}, at::kLong));
       }},
      {"linear_cross_entropy in chunks",
       [](const auto& x, const auto& w) {
         return linear_cross_entropy(x, w, at::randint(9, {kStepRows}, at::kLong), 1);
       }},
  };
  return all;
}

// The most bytes that a step takes.
int64_t peak_of_step(const TriedStep& step, bool frozen) {
  const Tensors leaves =
      random_leaves({{kStepRows, kWeightInputs}, {kWeightOutputs, kWeightInputs}}, at::kFloat);
  leaves[1].requires_grad_(!frozen);
  const test::AllocatedBytes bytes;
  step.forward(leaves[0], leaves[1]).backward();
  EXPECT_TRUE(leaves[0].grad().defined());
  EXPECT_EQ(leaves[1].grad().defined(), !frozen);
  return bytes.peak();
}

TEST(FrozenWeights, HaveNoGradientComputed) {
  for (const TriedStep& step : tried_steps()) {
    EXPECT_LT(peak_of_step(step, /*frozen=*/true), kStepWeightBytes) << step.name;
    EXPECT_GE(peak_of_step(step, /*frozen=*/false), kStepWeightBytes) << step.name;
  }
}

// What an output keeps alive beside itself.
int64_t kept_by(bool frozen,
                const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& of) {
  const at::Tensor source = at::randn({64, kWeightInputs}).requires_grad_();
  const at::Tensor weight = at::randn({8, kWeightInputs}).requires_grad_(!frozen);
  const test::AllocatedBytes bytes;
  const at::Tensor output = of(source * 2, weight);
  return bytes.held() - static_cast<int64_t>(output.nbytes());
}

TEST(FrozenWeights, LeaveTheirInputToWhoMadeIt) {
  constexpr int64_t kInputBytes = 64 * kWeightInputs * 4;
  const auto plain = [](const at::Tensor& x, const at::Tensor& w) { return ops::linear(x, w); };
  const auto after_norm = [](const at::Tensor& x, const at::Tensor& w) {
    return linear_after_norm(x, w);
  };
  EXPECT_LT(kept_by(/*frozen=*/true, plain), kInputBytes / 4);
  EXPECT_GE(kept_by(/*frozen=*/false, plain), kInputBytes);
  EXPECT_LT(kept_by(/*frozen=*/true, after_norm), kInputBytes / 4);
}

}  // namespace
}  // namespace sherd::ops
