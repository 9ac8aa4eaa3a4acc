#include "ops/linear.h"

#include <functional>
#include <optional>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include "ops/cpu/isa.h"
#include "ops/layer_norm.h"
#include "ops/plain/plain_backend.h"
#include "ops/plain_operators.h"
#include "ops/rms_norm.h"
#include "ops/with_backend.h"
#include "tests/ops/parity.h"
#include "tests/support/allocated_bytes.h"

namespace sherd::ops {
namespace {

class LinearTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, LinearTest, dtypes(), dtype_name);

void check_linear(const std::vector<std::vector<int64_t>>& shapes, c10::ScalarType dtype) {
  expect_parity([](const Tensors& in) { return ops::linear(in[0], in[1]); },
                [](const Tensors& in) { return at::linear(in[0], in[1]); },
                random_leaves(shapes, dtype));
}

TEST_P(LinearTest, AgreesOnMatrices) {
  check_linear({{7, 5}, {3, 5}}, GetParam());
}
TEST_P(LinearTest, AgreesOnBatches) {
  check_linear({{2, 13, 17}, {19, 17}}, GetParam());
}
TEST_P(LinearTest, AgreesWithoutRows) {
  check_linear({{0, 4, 6}, {3, 6}}, GetParam());
}

void check_with_bias(const std::vector<std::vector<int64_t>>& shapes, c10::ScalarType dtype) {
  expect_parity([](const Tensors& in) { return ops::linear(in[0], in[1], in[2]); },
                [](const Tensors& in) { return at::linear(in[0], in[1], in[2]); },
                random_leaves(shapes, dtype));
}

TEST_P(LinearTest, AgreesWithABias) {
  check_with_bias({{7, 5}, {3, 5}, {3}}, GetParam());
  check_with_bias({{2, 13, 17}, {19, 17}, {19}}, GetParam());
  check_with_bias({{0, 4, 6}, {3, 6}, {3}}, GetParam());
}

// Few rows have a product of their own where no gradient is wanted.
TEST_P(LinearTest, AgreesWithoutAGradientForFewRowsAndMany) {
  const at::NoGradGuard no_grad;
  for (const int64_t rows : {1, 4, 7, 32, 33}) {
    for (const int64_t inner : {3, 16, 40, 100}) {
      for (const int64_t outputs : {1, 6, 129}) {
        const Tensors in = random_leaves({{rows, inner}, {outputs, inner}, {outputs}}, GetParam());
        const Tensors wide = leaves_as(in, at::kDouble);
        const at::Tensor size =
            at::linear(wide[0].square(), wide[1].square(), wide[2].square()).sqrt();
        expect_close(ops::linear(in[0], in[1]), at::linear(wide[0], wide[1]),
                     tolerance_of(GetParam()), "product", size);
        expect_close(ops::linear(in[0], in[1], in[2]), at::linear(wide[0], wide[1], wide[2]),
                     tolerance_of(GetParam()), "with a bias", size);
      }
    }
  }
}

TEST_P(LinearTest, OfFewRowsGivesEachWhatItHasAlone) {
  if (cpu::isa() < cpu::Isa::Avx2 || GetParam() == at::kDouble) {
    GTEST_SKIP() << "without vector loops LibTorch's product is taken, which may sum otherwise";
  }
  const at::NoGradGuard no_grad;
  const Tensors in = random_leaves({{7, 70}, {9, 70}}, GetParam());
  const at::Tensor all = ops::linear(in[0], in[1]);
  for (int64_t row = 0; row < 7; ++row) {
    EXPECT_TRUE(ops::linear(in[0].narrow(0, row, 1), in[1]).equal(all.narrow(0, row, 1))) << row;
  }
}

TEST(Linear, OfNoRowsHasNoneWithoutAGradientEither) {
  const PlainOperators plain;  // as on a device whose back end has no product of few rows
  const at::NoGradGuard no_grad;
  EXPECT_EQ(ops::linear(at::zeros({0, 8}), at::zeros({4, 8})).sizes(), at::IntArrayRef({0, 4}));
}

TEST(Linear, SumsTheBiasGradientWithoutLosingSmallTermsInBf16) {
  const Tensors leaves = random_leaves({{400, 3}, {2, 3}, {2}}, at::kBFloat16);
  ops::linear(leaves[0], leaves[1], leaves[2]).sum().backward();
  EXPECT_EQ(leaves[2].grad()[1].item<float>(), 400.0F);  // added one by one in bf16: 256
}

TEST(Linear, ABiasMayBeFrozenOrAloneInLearning) {
  for (const bool frozen : {true, false}) {
    const Tensors leaves = random_leaves({{4, 6}, {5, 6}, {5}}, at::kFloat);
    leaves[2].requires_grad_(!frozen);
    leaves[1].requires_grad_(frozen);
    ops::linear(leaves[0], leaves[1], leaves[2]).sum().backward();
    EXPECT_EQ(leaves[1].grad().defined(), frozen);
    EXPECT_EQ(leaves[2].grad().defined(), !frozen);
  }
}

TEST(Linear, TakesInputsOfAnyStrides) {
  const Tensors leaves = random_leaves({{4, 3, 6}, {5, 6}}, at::kFloat);
  expect_parity([](const Tensors& in) { return ops::linear(in[0].transpose(0, 1), in[1]); },
                [](const Tensors& in) { return at::linear(in[0].transpose(0, 1), in[1]); }, leaves);
}

TEST(Linear, ComputesNoGradientThatNobodyWants) {
  const Tensors leaves = random_leaves({{4, 6}, {5, 6}}, at::kFloat);
  leaves[1].requires_grad_(false);
  ops::linear(leaves[0], leaves[1]).sum().backward();
  EXPECT_TRUE(leaves[0].grad().defined());
  EXPECT_FALSE(leaves[1].grad().defined());
}

// What follows a norm: the same bits, whichever way the input comes back.
using Block = std::function<at::Tensor(const Tensors& in, bool keeps_nothing)>;

Tensors gradients_of(const Block& block, const Tensors& leaves, bool keeps_nothing, int times) {
  for (const at::Tensor& leaf : leaves) {
    leaf.mutable_grad().reset();
  }
  const at::Tensor output = block(leaves, keeps_nothing);
  Tensors results = {output.detach()};
  for (int i = 0; i < times; ++i) {
    output.square().sum().backward({}, /*retain_graph=*/i + 1 < times);
  }
  for (const at::Tensor& leaf : leaves) {
    results.push_back(leaf.grad());
  }
  return results;
}

void expect_same_bits(const Block& block, const Tensors& leaves, int times = 1) {
  const Tensors expected = gradients_of(block, leaves, false, times);
  const Tensors found = gradients_of(block, leaves, true, times);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(expected[i], found[i])) << i;
  }
}

at::Tensor either_linear(const at::Tensor& input, const at::Tensor& weight, bool keeps_nothing) {
  return keeps_nothing ? ops::linear_after_norm(input, weight) : ops::linear(input, weight);
}

at::Tensor two_after_rms_norm(const Tensors& in, bool keeps_nothing) {
  const auto [sum, normalised] = add_rms_norm(in[0], in[1], in[2], 1e-5);
  return either_linear(normalised, in[3], keeps_nothing) *
             either_linear(normalised, in[4], keeps_nothing) +
         sum.sum();
}

at::Tensor one_after_layer_norm(const Tensors& in, bool keeps_nothing) {
  return either_linear(layer_norm(in[0], in[1], in[2], 1e-5), in[3], keeps_nothing);
}

TEST_P(LinearTest, AfterANormHasTheSameGradients) {
  for (const bool plain : {false, true}) {
    std::optional<PlainOperators> guard;
    if (plain) {
      guard.emplace();
    }
    const Tensors leaves =
        random_leaves({{2, 5, 16}, {2, 5, 16}, {16}, {8, 16}, {8, 16}}, GetParam());
    expect_same_bits(two_after_rms_norm, leaves);
    expect_same_bits(one_after_layer_norm,
                     random_leaves({{6, 16}, {16}, {16}, {8, 16}}, GetParam()));
  }
}

TEST(LinearAfterNorm, MayGoBackwardsAgain) {
  expect_same_bits(one_after_layer_norm, random_leaves({{6, 16}, {16}, {16}, {8, 16}}, at::kFloat),
                   /*times=*/3);
}

TEST(LinearAfterNorm, OfAnyOtherInputIsLinear) {
  const Block of_the_sum = [](const Tensors& in, bool keeps_nothing) {
    const auto [sum, normalised] = add_rms_norm(in[0], in[1], in[2], 1e-5);
    return either_linear(sum, in[3], keeps_nothing) + normalised.sum();
  };
  expect_same_bits(of_the_sum, random_leaves({{6, 16}, {6, 16}, {16}, {8, 16}}, at::kFloat));
  const Block of_a_leaf = [](const Tensors& in, bool keeps_nothing) {
    return either_linear(in[0], in[1], keeps_nothing);
  };
  expect_same_bits(of_a_leaf, random_leaves({{6, 16}, {8, 16}}, at::kFloat));
  const Block of_twice_the_norm = [](const Tensors& in, bool keeps_nothing) {
    return either_linear(rms_norm(in[0], in[1], 1e-5) * 2, in[2], keeps_nothing);
  };
  expect_same_bits(of_twice_the_norm, random_leaves({{6, 16}, {16}, {8, 16}}, at::kFloat));
}

TEST(LinearAfterNorm, OfAnOutputThatWasChangedIsLinear) {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const Block of_a_masked_norm = [](const Tensors& in, bool keeps_nothing) {
      at::Tensor normalised = rms_norm(in[0], in[1], 1e-5);
      {
        const at::NoGradGuard no_grad;
        normalised.mul_(3);
      }
      return either_linear(normalised, in[2], keeps_nothing);
    };
    expect_same_bits(of_a_masked_norm, random_leaves({{6, 16}, {16}, {8, 16}}, dtype));
  }
}

TEST(LinearAfterNorm, LeavesTheNormToItsInputAlone) {
  const Tensors leaves = random_leaves({{64, 1024}, {1024}, {4, 1024}, {4, 1024}}, at::kFloat);
  const auto held = [&](bool keeps_nothing) {
    const test::AllocatedBytes bytes;
    at::Tensor normalised = rms_norm(leaves[0], leaves[1], 1e-5);
    const Tensors outputs = {either_linear(normalised, leaves[2], keeps_nothing),
                             either_linear(normalised, leaves[3], keeps_nothing)};
    normalised.reset();
    return bytes.held();
  };
  EXPECT_GE(held(false) - held(true), 64 * 1024 * 4);
  EXPECT_LE(held(true), 64 * 1024);
}

// The plain back end, with products of weights that lie side by side.
const Backend& joining_backend() {
  static const Backend joining = [] {
    Backend backend = plain::plain_backend();
    backend.joins_products = true;
    return backend;
  }();
  return joining;
}

constexpr int64_t kInner = 5;
const std::vector<int64_t> kOutputs = {6, 3, 1};

// One behind the other in memory: leaves of their own for autograd.
Tensors weights_side_by_side(c10::ScalarType dtype) {
  const at::Tensor all = at::randn({10, kInner}, at::kDouble).to(dtype);
  Tensors weights;
  for (const at::Tensor& weight : all.split_with_sizes(kOutputs)) {
    weights.push_back(weight.detach().requires_grad_());
  }
  return weights;
}

at::Tensor side_by_side_outputs(const Tensors& in) {
  return at::cat(linears_after_norm(in[0], {in[1], in[2], in[3]}), -1);
}

TEST_P(LinearTest, OfWeightsSideBySideAgrees) {
  const WithBackend joining(joining_backend());
  for (const auto& rows : std::vector<std::vector<int64_t>>{{7}, {2, 3}, {0}}) {
    std::vector<int64_t> sizes = rows;
    sizes.push_back(kInner);
    Tensors leaves = random_leaves({sizes}, GetParam());
    const Tensors weights = weights_side_by_side(GetParam());
    leaves.insert(leaves.end(), weights.begin(), weights.end());
    expect_parity(
        side_by_side_outputs,
        [](const Tensors& in) {
          return at::cat(
              {at::linear(in[0], in[1]), at::linear(in[0], in[2]), at::linear(in[0], in[3])}, -1);
        },
        leaves);
  }
}

// Weights with their biases between them: copied side by side where the input has as many rows.
TEST_P(LinearTest, OfWeightsAndBiasesAgrees) {
  const WithBackend joining(joining_backend());
  const auto outputs = [](const Tensors& in) {
    return at::cat(linears_after_norm(in[0], {in[1], in[2]}, {in[3], in[4]}), -1);
  };
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{12}, {2, 6}, {3}}) {
    std::vector<int64_t> sizes = rows;
    sizes.push_back(kInner);
    expect_parity(
        outputs,
        [](const Tensors& in) {
          return at::cat({at::linear(in[0], in[1], in[3]), at::linear(in[0], in[2], in[4])}, -1);
        },
        random_leaves({sizes, {6, kInner}, {3, kInner}, {6}, {3}}, GetParam()));
  }
}

TEST(Linears, OfWeightsAndBiasesAreOneProductWhereTheInputHasAsManyRows) {
  const at::Tensor weight = at::randn({4, kInner}), other = at::randn({2, kInner});
  const Tensors biases = {at::randn({4}), at::randn({2})};
  const auto is_one = [&](int64_t rows, const Tensors& of) {
    const Tensors out = linears_after_norm(at::randn({rows, kInner}), {weight, other}, of);
    return out[0].is_alias_of(out[1]);
  };
  EXPECT_FALSE(is_one(6, biases));  // the processor's back end does not join
  const WithBackend joining(joining_backend());
  EXPECT_TRUE(is_one(6, biases));
  EXPECT_FALSE(is_one(5, biases));
  EXPECT_FALSE(is_one(6, {}));
  EXPECT_FALSE(is_one(6, {biases[0], biases[1].clone().requires_grad_()}));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(is_one(6, biases));
}

TEST(Linears, AreColumnsOfOneProductWhereWeightsLieSideBySide) {
  const auto is_one = [](const Tensors& weights) {
    const Tensors out = linears_after_norm(at::randn({4, kInner}), weights);
    return out[0].is_alias_of(out[1]);
  };
  const Tensors weights = weights_side_by_side(at::kFloat);
  EXPECT_FALSE(is_one(weights));  // the processor's back end does not join
  const WithBackend joining(joining_backend());
  EXPECT_TRUE(is_one(weights));
  EXPECT_TRUE(is_one({weights[1], weights[2]}));
  EXPECT_FALSE(is_one({weights[0], weights[2]}));
  EXPECT_FALSE(is_one({weights[1], weights[0]}));
  EXPECT_FALSE(is_one({weights[0], weights[1].detach().clone().requires_grad_()}));
  EXPECT_FALSE(is_one({weights[0], weights[1].detach()}));  // has no gradient, as the other has
  EXPECT_TRUE(is_one({weights[0].detach(), weights[1].detach()}));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(is_one(weights));
}

TEST(Linears, AskForTheGradientsThatAreWanted) {
  const WithBackend joining(joining_backend());
  const at::Tensor input = at::randn({4, kInner}).requires_grad_();
  const Tensors weights = weights_side_by_side(at::kFloat);
  const at::Tensor sum = side_by_side_outputs({input, weights[0], weights[1], weights[2]}).sum();
  const Tensors found = torch::autograd::grad({sum}, {weights[1]});
  EXPECT_TRUE(at::equal(found[0], input.detach().sum(0, /*keepdim=*/true).expand({3, kInner})));
  EXPECT_FALSE(input.grad().defined() || weights[0].grad().defined());
}

}  // namespace
}  // namespace sherd::ops
