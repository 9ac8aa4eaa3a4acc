// Values and gradients of every operator against fp64, on each path of the processor up to this
// machine's and in each dtype. A path that the machine lacks is SKIPPED by name.

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "ops/bias_gelu.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/rms_norm.h"
#include "ops/rotary.h"
#include "ops/swiglu_linear.h"
#include "tests/ops/parity.h"
#include "tests/ops/rows_attention.h"
#include "tests/ops/with_isa.h"

namespace sherd::ops {
namespace {

using Path = std::tuple<int, c10::ScalarType>;

class PathTest : public testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    const auto isa = static_cast<cpu::Isa>(std::get<0>(GetParam()));
    if (isa > cpu::machine_isa()) {
      GTEST_SKIP() << "path not run: " << cpu::name_of(isa) << " (this processor is "
                   << cpu::name_of(cpu::machine_isa()) << ")";
    }
    path_.emplace(isa);
  }
  [[nodiscard]] static c10::ScalarType dtype() { return std::get<1>(GetParam()); }

 private:
  std::optional<WithIsa> path_;
};

std::string path_name(const testing::TestParamInfo<Path>& info) {
  const auto& [isa, dtype] = info.param;
  return cpu::name_of(static_cast<cpu::Isa>(isa)) + "_" + c10::toString(dtype);
}

INSTANTIATE_TEST_SUITE_P(Paths, PathTest,
                         testing::Combine(testing::Range(0, cpu::kIsaCount),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         path_name);

TEST_P(PathTest, Linear) {
  expect_parity([](const Tensors& in) { return ops::linear(in[0], in[1], in[2]); },
                [](const Tensors& in) { return at::linear(in[0], in[1], in[2]); },
                random_leaves({{2, 37, 65}, {300, 65}, {300}}, dtype()));
}

TEST_P(PathTest, Norms) {
  const std::vector<std::vector<int64_t>> shapes = {{9, 70}, {70}, {70}};
  expect_parity([](const Tensors& in) { return ops::layer_norm(in[0], in[1], in[2], 1e-5); },
                [](const Tensors& in) { return at::layer_norm(in[0], {70}, in[1], in[2], 1e-5); },
                random_leaves(shapes, dtype()));
  expect_parity([](const Tensors& in) { return ops::rms_norm(in[0], in[1], 1e-5); },
                [](const Tensors& in) { return at::rms_norm(in[0], {70}, in[1], 1e-5); },
                random_leaves({{9, 70}, {70}}, dtype()));
}

TEST_P(PathTest, Activations) {
  expect_parity([](const Tensors& in) { return bias_gelu(in[0], in[1]); },
                [](const Tensors& in) { return at::gelu(in[0] + in[1], "tanh"); },
                random_leaves({{9, 70}, {70}}, dtype()));
  expect_parity([](const Tensors& in) { return swiglu_linear(in[0], in[1], in[2]); },
                [](const Tensors& in) { return at::linear(at::silu(in[0]) * in[1], in[2]); },
                random_leaves({{9, 70}, {9, 70}, {33, 70}}, dtype()));
}

TEST_P(PathTest, Rotary) {
  const RotaryTables tables = rotary_tables(at::arange(1, 4).to(at::kFloat).reciprocal(), 11);
  const auto plain = [&](const at::Tensor& x) {
    const at::Tensor a = x.slice(-1, 0, 3), b = x.slice(-1, 3);
    return at::cat({a * tables.cosine - b * tables.sine, b * tables.cosine + a * tables.sine}, -1);
  };
  expect_parity([&](const Tensors& in) { return rotary(in[0], tables); },
                [&](const Tensors& in) { return plain(in[0]); },
                random_leaves({{2, 3, 11, 6}}, dtype()));
}

TEST_P(PathTest, Embedding) {
  const at::Tensor ids = at::randint(7, {40}, at::kLong);
  expect_parity([&](const Tensors& in) { return ops::embedding(ids, in[0]); },
                [&](const Tensors& in) { return at::embedding(in[0], ids); },
                random_leaves({{7, 20}}, dtype()));
}

TEST_P(PathTest, Attention) {
  constexpr int64_t kTokens = 140;
  const at::Tensor slopes = at::arange(1, 5, at::kFloat).mul_(-0.5).exp_();
  const auto plain = [&](const Tensors& in) {
    const at::Tensor distances =
        at::arange(kTokens, at::kDouble).unsqueeze(1) - at::arange(kTokens, at::kDouble);
    const auto shared = [](const at::Tensor& heads) { return heads.repeat_interleave(2, 1); };
    const at::Tensor scores = at::matmul(in[0], shared(in[1]).transpose(2, 3)) / std::sqrt(8.0) -
                              slopes.view({-1, 1, 1}).to(at::kDouble) * distances;
    const at::Tensor masked =
        scores.masked_fill(distances < 0, -std::numeric_limits<double>::infinity());
    return at::matmul(at::softmax(masked, -1), shared(in[2])).transpose(1, 2).flatten(2);
  };
  expect_parity(
      [&](const Tensors& in) { return rows_attention(in[0], in[1], in[2], slopes); }, plain,
      random_leaves({{2, 4, kTokens, 8}, {2, 2, kTokens, 8}, {2, 2, kTokens, 8}}, dtype()));
}

// One chunk, and several; a vocabulary far above the width too.
TEST_P(PathTest, LinearCrossEntropy) {
  for (const int64_t chunk : {512, 40}) {
    const at::Tensor targets = at::randint(300, {200}, at::kLong);
    expect_parity(
        [&](const Tensors& in) { return linear_cross_entropy(in[0], in[1], targets, chunk); },
        [&](const Tensors& in) {
          return at::cross_entropy_loss(at::linear(in[0], in[1]), targets, {}, at::Reduction::Sum);
        },
        random_leaves({{200, 24}, {300, 24}}, dtype()));
  }
}

// Probabilities of 3e-7, as a large vocabulary has, are five times the least number of fp16: they
// are multiplied before they are rounded, which is what loss scaling is for.
TEST_P(PathTest, SmallGradientsAreNotLostInSeveralChunks) {
  Tensors in = random_leaves({{64, 16}, {500, 16}}, dtype());
  {
    const at::NoGradGuard no_grad;
    in[0].mul_(0.01).select(1, 0).fill_(1);
    in[1].mul_(0.1).select(1, 0).fill_(0);
    in[1][0][0] = 15;
  }
  const Tensors exact = leaves_as(in, at::kDouble);
  const at::Tensor targets = at::zeros({64}, at::kLong);
  (linear_cross_entropy(in[0], in[1], targets, 8) * 256).backward();
  (at::cross_entropy_loss(at::linear(exact[0], exact[1]), targets, {}, at::Reduction::Sum) * 256)
      .backward();
  expect_close(in[1].grad().slice(0, 1), exact[1].grad().slice(0, 1), tolerance_of(dtype()),
               "gradient of what is no target");
}

}  // namespace
}  // namespace sherd::ops
