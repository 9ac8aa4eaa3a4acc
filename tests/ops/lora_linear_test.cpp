// Linear maps with low-rank updates, against LibTorch's plain formula: values and gradients.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/plain/plain_backend.h"
#include "ops/rms_norm.h"
#include "ops/swiglu_linear.h"
#include "ops/with_backend.h"
#include "tests/ops/parity.h"
#include "tests/support/allocated_bytes.h"

namespace sherd::ops {
namespace {

constexpr double kScale = 1.75;

LowRank update_of(const at::Tensor& A, const at::Tensor& B, double scale = kScale) {
  return {.A = A, .B = B, .scale = scale};
}

at::Tensor plain_update(const at::Tensor& x, const at::Tensor& A, const at::Tensor& B,
                        double scale = kScale) {
  return at::linear(at::linear(x, A), B) * scale;
}

class LoraLinearTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, LoraLinearTest, dtypes(), dtype_name);

TEST_P(LoraLinearTest, AgreesWithThePlainFormula) {
  for (const auto& rows : std::vector<std::vector<int64_t>>{{7}, {2, 13}, {0, 4}}) {
    std::vector<int64_t> sizes = rows;
    sizes.push_back(17);
    expect_parity(
        [](const Tensors& in) { return ops::linear(in[0], in[1], in[2], update_of(in[3], in[4])); },
        [](const Tensors& in) {
          return at::linear(in[0], in[1], in[2]) + plain_update(in[0], in[3], in[4]);
        },
        random_leaves({sizes, {19, 17}, {19}, {3, 17}, {19, 3}}, GetParam()));
  }
}

// Conv1D's weight, which is transposed.
TEST_P(LoraLinearTest, TakesATransposedWeight) {
  expect_parity(
      [](const Tensors& in) {
        return ops::linear(in[0], in[1].t(), std::nullopt, update_of(in[2], in[3]));
      },
      [](const Tensors& in) {
        return at::linear(in[0], in[1].t()) + plain_update(in[0], in[2], in[3]);
      },
      random_leaves({{6, 17}, {17, 19}, {3, 17}, {19, 3}}, GetParam()));
}

// Three maps of one norm's output: the second has no update, ranks and scales differ.
at::Tensor three_after_norm(const Tensors& in, bool has_bias) {
  const at::Tensor x = rms_norm(in[0], in[1], 1e-5);
  const Tensors biases = has_bias ? Tensors{in[9], in[10], in[11]} : Tensors{};
  const Tensors outputs =
      linears_after_norm(x, {in[2], in[3], in[4]}, biases,
                         {update_of(in[5], in[6]), LowRank{}, update_of(in[7], in[8], 0.5)});
  return at::cat({outputs[0], outputs[1], outputs[2]}, -1);
}

at::Tensor plain_three_after_norm(const Tensors& in, bool has_bias) {
  const at::Tensor mean = in[0].square().mean(-1, /*keepdim=*/true);
  const at::Tensor x = in[0] * (mean + 1e-5).rsqrt() * in[1];
  const auto base = [&](size_t i) {
    return has_bias ? at::linear(x, in[2 + i], in[9 + i]) : at::linear(x, in[2 + i]);
  };
  return at::cat({base(0) + plain_update(x, in[5], in[6]), base(1),
                  base(2) + plain_update(x, in[7], in[8], 0.5)},
                 -1);
}

Tensors leaves_of_three(const std::vector<int64_t>& rows, bool has_bias, c10::ScalarType dtype) {
  std::vector<int64_t> sizes = rows;
  sizes.push_back(16);
  std::vector<std::vector<int64_t>> shapes = {sizes,   {16},   {8, 16}, {5, 16}, {3, 16},
                                              {2, 16}, {8, 2}, {4, 16}, {3, 4}};
  if (has_bias) {
    shapes.insert(shapes.end(), {{8}, {5}, {3}});
  }
  return random_leaves(shapes, dtype);
}

const Backend& plain_that_joins() {
  static const Backend joining = [] {
    Backend backend = plain::plain_backend();
    backend.joins_products = true;
    return backend;
  }();
  return joining;
}

TEST_P(LoraLinearTest, OfSeveralMapsAgrees) {
  for (const bool joins : {false, true}) {
    std::optional<WithBackend> joining;
    if (joins) {
      joining.emplace(plain_that_joins());
    }
    for (const bool has_bias : {false, true}) {
      for (const auto& rows : std::vector<std::vector<int64_t>>{{20}, {3, 7}}) {
        expect_parity([&](const Tensors& in) { return three_after_norm(in, has_bias); },
                      [&](const Tensors& in) { return plain_three_after_norm(in, has_bias); },
                      leaves_of_three(rows, has_bias, GetParam()));
      }
    }
  }
}

TEST_P(LoraLinearTest, OfWeightsSideBySideAgrees) {
  const WithBackend joining(plain_that_joins());
  const at::Tensor all = at::randn({13, 16}, at::kDouble).to(GetParam());
  Tensors leaves = random_leaves({{9, 16}, {2, 16}, {8, 2}, {4, 16}, {5, 4}}, GetParam());
  leaves.push_back(all.narrow(0, 0, 8).detach().requires_grad_());
  leaves.push_back(all.narrow(0, 8, 5).detach().requires_grad_());
  bool is_one = false;
  expect_parity(
      [&](const Tensors& in) {
        const Tensors out = linears_after_norm(in[0], {in[5], in[6]}, {},
                                               {update_of(in[1], in[2]), update_of(in[3], in[4])});
        is_one = out[0].is_alias_of(out[1]);
        return at::cat({out[0], out[1]}, -1);
      },
      [](const Tensors& in) {
        return at::cat({at::linear(in[0], in[5]) + plain_update(in[0], in[1], in[2]),
                        at::linear(in[0], in[6]) + plain_update(in[0], in[3], in[4])},
                       -1);
      },
      leaves);
  EXPECT_TRUE(is_one);
}

TEST_P(LoraLinearTest, OfAGatedProductAgrees) {
  for (const bool is_gelu : {false, true}) {
    expect_parity(
        [&](const Tensors& in) {
          const LowRank update = update_of(in[3], in[4]);
          return is_gelu ? geglu_linear(in[0], in[1], in[2], update)
                         : swiglu_linear(in[0], in[1], in[2], update);
        },
        [&](const Tensors& in) {
          const at::Tensor product = (is_gelu ? at::gelu(in[0], "tanh") : at::silu(in[0])) * in[1];
          return at::linear(product, in[2]) + plain_update(product, in[3], in[4]);
        },
        random_leaves({{3, 5, 17}, {3, 5, 17}, {9, 17}, {2, 17}, {9, 2}}, GetParam()));
  }
}

at::Tensor plain_head_loss(const Tensors& in, const at::Tensor& targets) {
  return at::cross_entropy_loss(at::linear(in[0], in[1]) + plain_update(in[0], in[2], in[3]),
                                targets, {}, at::Reduction::Sum);
}

TEST_P(LoraLinearTest, OfAHeadAgreesInOneChunkAndInSeveral) {
  const at::Tensor targets = at::randint(300, {96}, at::kLong);
  for (const int64_t chunk : {512, 16}) {
    expect_parity(
        [&](const Tensors& in) {
          return linear_cross_entropy(in[0], in[1], targets, chunk, {}, {},
                                      update_of(in[2], in[3]));
        },
        [&](const Tensors& in) { return plain_head_loss(in, targets); },
        random_leaves({{96, 8}, {300, 8}, {3, 8}, {300, 3}}, GetParam()));
  }
}

// With B frozen, A learns, and with both frozen what made the hidden states.
TEST(LoraLinear, OfAHeadReachesAllThatLearns) {
  const at::Tensor targets = at::randint(300, {96}, at::kLong);
  for (const int64_t chunk : {512, 16}) {
    for (const bool a_learns : {true, false}) {
      const Tensors in = random_leaves({{96, 8}, {300, 8}, {3, 8}, {300, 3}}, at::kFloat);
      in[2].requires_grad_(a_learns);
      in[3].requires_grad_(false);
      linear_cross_entropy(in[0], in[1], targets, chunk, {}, {}, update_of(in[2], in[3]))
          .backward();
      Tensors found;
      for (const at::Tensor& leaf : in) {
        found.push_back(leaf.grad());
        leaf.mutable_grad() = at::Tensor();
      }
      plain_head_loss(in, targets).backward();
      for (size_t i = 0; i < in.size(); ++i) {
        ASSERT_EQ(found[i].defined(), in[i].grad().defined()) << i;
        EXPECT_TRUE(!found[i].defined() || at::allclose(found[i], in[i].grad(), 1e-4, 1e-5)) << i;
      }
    }
  }
}

// A frozen base.
struct Frozen {
  at::Tensor x, A, B;
  Tensors weights;

  explicit Frozen(c10::ScalarType dtype) {
    const Tensors in = random_leaves({{9, 16}, {2, 16}, {8, 2}, {8, 16}, {5, 16}}, dtype);
    x = in[0];
    A = in[1];
    B = in[2];
    weights = {in[3].detach(), in[4].detach()};
  }
  [[nodiscard]] Tensors outputs(const at::Tensor& of_b) const {
    return linears_after_norm(x, weights, {}, {update_of(A, of_b), LowRank{}});
  }
};

TEST_P(LoraLinearTest, WithBZeroHasTheBasesBits) {
  const Frozen frozen(GetParam());
  const Tensors base = linears_after_norm(frozen.x, frozen.weights);
  const Tensors adapted = frozen.outputs(at::zeros_like(frozen.B));
  for (size_t i = 0; i < base.size(); ++i) {
    EXPECT_TRUE(at::equal(base[i], adapted[i])) << i;
  }
}

// As a checkpointed unit's first forward, and evaluation, compute it.
TEST_P(LoraLinearTest, HasTheSameBitsWithoutAGradient) {
  const at::Tensor rows = at::randn({70, 16}, at::kDouble).to(GetParam());
  const Frozen frozen(GetParam());
  const auto outputs = [&] {
    Tensors all =
        linears_after_norm(rows, frozen.weights, {}, {update_of(frozen.A, frozen.B), LowRank{}});
    all.push_back(
        ops::linear(rows, frozen.weights[0], std::nullopt, update_of(frozen.A, frozen.B)));
    all.push_back(swiglu_linear(rows, rows, frozen.weights[0], update_of(frozen.A, frozen.B)));
    return all;
  };
  const Tensors expected = outputs();
  const at::NoGradGuard no_grad;
  const Tensors found = outputs();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(expected[i], found[i])) << i;
  }
}

// Counts the products of each shape.
std::map<std::vector<int64_t>, int64_t> products;
void noting_mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  ++products[out.sizes().vec()];
  plain::plain_backend().mm(out, a, b);
}

// The plain back end.
const Backend& noting() {
  static const Backend noting = [] {
    Backend backend = plain::plain_backend();
    backend.mm = &noting_mm;
    return backend;
  }();
  return noting;
}

TEST(LoraLinear, LeavesTheInputsGradientOutWhereNobodyWantsIt) {
  const WithBackend with(noting());
  for (const bool is_wanted : {false, true}) {
    const Frozen frozen(at::kFloat);
    const at::Tensor x = frozen.x.detach().requires_grad_(is_wanted);
    const LowRank update = update_of(frozen.A, frozen.B);
    const at::Tensor sum = ops::linear(x, frozen.weights[0], std::nullopt, update).sum();
    products.clear();
    sum.backward();
    EXPECT_EQ(products[x.sizes().vec()], is_wanted ? 1 : 0);
    EXPECT_EQ(x.grad().defined(), is_wanted);
    EXPECT_TRUE(frozen.A.grad().defined() && frozen.B.grad().defined());
  }
}

TEST(LoraLinear, ComputesNoGradientOfAFrozenBase) {
  const WithBackend with(noting());
  for (const bool is_frozen : {true, false}) {
    const Frozen frozen(at::kFloat);
    frozen.weights[0].requires_grad_(!is_frozen);
    products.clear();
    const LowRank update = update_of(frozen.A, frozen.B);
    ops::linear(frozen.x, frozen.weights[0], std::nullopt, update).sum().backward();
    swiglu_linear(frozen.x, frozen.x, frozen.weights[0], update).sum().backward();
    EXPECT_EQ((products[{8, 16}]), is_frozen ? 0 : 2);
  }
}

// After a norm it keeps r values per row, not the input.
TEST(LoraLinear, AfterANormKeepsLittle) {
  const Tensors in = random_leaves({{64, 1024}, {1024}, {4, 1024}, {4, 1024}, {4, 4}}, at::kFloat);
  in[2].requires_grad_(false);
  const auto held = [&](bool after_norm) {
    const test::AllocatedBytes bytes;
    at::Tensor x = rms_norm(in[0], in[1], 1e-5);
    const LowRank update = update_of(in[3], in[4]);
    const at::Tensor output = after_norm ? linear_after_norm(x, in[2], std::nullopt, update)
                                         : ops::linear(x, in[2], std::nullopt, update);
    x.reset();
    return bytes.held();
  };
  EXPECT_GE(held(false) - held(true), 64 * 1024 * 4);
  EXPECT_LE(held(true), 64 * 1024);
}

}  // namespace
}  // namespace sherd::ops
