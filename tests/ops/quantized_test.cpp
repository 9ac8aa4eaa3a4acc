// Products with weights in 8 bits, beside those with the numbers that they stand for.

#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "ops/as_on_gpus.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels.h"
#include "ops/linear.h"
#include "ops/plain_operators.h"
#include "ops/q8_0.h"
#include "ops/rms_norm.h"
#include "ops/swiglu_linear.h"
#include "tests/ops/parity.h"
#include "tests/support/allocated_bytes.h"

namespace sherd::ops {
namespace {

at::Tensor random_blocks(int64_t rows, int64_t columns) {
  return q8_0::quantized(at::randn({rows, columns}));
}

TEST(Q8, ANumberIsItsScaleTimesItsCode) {
  const at::Tensor matrix = at::zeros({2, 64});
  matrix[0][3] = -127 * 0.5;
  matrix[0][4] = 64 * 0.5;
  matrix[1][63] = 3;
  const at::Tensor blocks = q8_0::quantized(matrix);
  EXPECT_EQ(blocks.sizes(), at::IntArrayRef({2, 2 * 34}));
  EXPECT_EQ(blocks[0][2 + 3].item<int>(), 256 - 127);
  EXPECT_EQ(blocks[0][2 + 4].item<int>(), 64);
  const at::Tensor numbers = q8_0::dequantized(blocks, at::kFloat);
  EXPECT_TRUE(at::equal(numbers[0], matrix[0]));
  EXPECT_NEAR(numbers[1][63].item<float>(), 3, 3e-3);
}

// Blocks that come from a file of the same format stay what they were.
TEST(Q8, NumbersOfBlocksAreRoundedToTheSameBlocks) {
  const at::Tensor blocks = random_blocks(50, 320);
  EXPECT_TRUE(at::equal(q8_0::quantized(q8_0::dequantized(blocks, at::kFloat)), blocks));
}

TEST(Q8, EveryInstructionSetHasTheReferencesBits) {
  const at::Tensor blocks = random_blocks(5, 37 * 32);
  for (const cpu::KernelSet& set : cpu::kernel_sets(cpu::machine_isa())) {
    const auto check = [&](const auto& table, auto type) {
      using T = decltype(type);
      const auto dtype = c10::CppTypeToScalarType<T>::value;
      const at::Tensor found = at::empty({5, 37 * 32}, dtype);
      table.dequantize(blocks.const_data_ptr<uint8_t>(), cpu::mutable_data<T>(found), 5 * 37);
      EXPECT_TRUE(at::equal(found, q8_0::dequantized(blocks, dtype))) << set.name << ' ' << dtype;
    };
    check(set.of<float>(), float());
    check(set.of<c10::BFloat16>(), c10::BFloat16());
    check(set.of<c10::Half>(), c10::Half());
  }
}

class QuantizedWeights : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, QuantizedWeights, dtypes(), dtype_name);

// The first of `in` is the input, or several; the weight follows.
using WithWeight = std::function<at::Tensor(const Tensors& in, const at::Tensor& weight)>;

// Values and gradients of the inputs, as of a frozen weight with the blocks' numbers.
void expect_as_dense(const WithWeight& op, const at::Tensor& quantized, const at::Tensor& dense,
                     const std::vector<std::vector<int64_t>>& shapes, c10::ScalarType dtype) {
  const Tensors found = random_leaves(shapes, dtype), expected = leaves_as(found, dtype);
  const at::Tensor actual = op(found, quantized), plain = op(expected, dense);
  const double tolerance = tolerance_of(dtype);
  expect_close(actual, plain, tolerance, "value");
  const at::Tensor gradient = strided_gradient(actual);
  torch::autograd::backward({actual}, {gradient});
  torch::autograd::backward({plain}, {gradient});
  for (size_t i = 0; i < found.size(); ++i) {
    expect_close(found[i].grad(), expected[i].grad(), tolerance, "gradient");
  }
}

// Of one tile, and of several that do not divide.
const std::vector<std::pair<int64_t, int64_t>> kWeightShapes = {{3, 32}, {70, 96}, {1500, 1056}};

TEST_P(QuantizedWeights, MultiplyAsTheirNumbersDo) {
  const auto product = [](const Tensors& in, const at::Tensor& weight) {
    return ops::linear(in[0], weight);
  };
  const auto with_bias = [](const Tensors& in, const at::Tensor& weight) {
    return ops::linear(in[0], weight, in[1]);
  };
  for (const auto& [outputs, inputs] : kWeightShapes) {
    const at::Tensor blocks = random_blocks(outputs, inputs);
    const at::Tensor dense = q8_0::dequantized(blocks, GetParam());
    for (const int64_t rows : {0, 1, 5, 70}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(outputs) + " outputs");
      expect_as_dense(product, blocks, dense, {{rows, inputs}}, GetParam());
      expect_as_dense(with_bias, blocks, dense, {{rows, inputs}, {outputs}}, GetParam());
      const at::NoGradGuard no_grad;
      const at::Tensor input = at::randn({rows, inputs}).to(GetParam());
      expect_close(ops::linear(input, blocks), ops::linear(input, dense), tolerance_of(GetParam()),
                   "without gradients");
    }
  }
}

// GPT-2's: [inputs, outputs].
TEST_P(QuantizedWeights, MayBeTransposed) {
  const auto product = [](const Tensors& in, const at::Tensor& weight) {
    return ops::linear(in[0], weight.t(), in[1]);
  };
  for (const auto& [inputs, outputs] : kWeightShapes) {
    const at::Tensor blocks = random_blocks(inputs, outputs);
    expect_as_dense(product, blocks, q8_0::dequantized(blocks, GetParam()),
                    {{2, 9, inputs}, {outputs}}, GetParam());
  }
}

TEST_P(QuantizedWeights, FollowANormTogether) {
  const at::Tensor all = random_blocks(32 + 64, 128);
  const at::Tensor gain = at::ones({128}, GetParam());
  const auto joined = [&](const Tensors& in, const at::Tensor& weight) {
    const at::Tensor normalised = ops::rms_norm(in[0], gain, 1e-5);
    return at::cat(
        ops::linears_after_norm(normalised, {weight.narrow(0, 0, 32), weight.narrow(0, 32, 64)}),
        1);
  };
  expect_as_dense(joined, all, q8_0::dequantized(all, GetParam()), {{6, 128}}, GetParam());
}

TEST_P(QuantizedWeights, FollowAGate) {
  const at::Tensor blocks = random_blocks(48, 96);
  const auto gated = [](const Tensors& in, const at::Tensor& weight) {
    return ops::swiglu_linear(in[0], in[1], weight);
  };
  expect_as_dense(gated, blocks, q8_0::dequantized(blocks, GetParam()), {{6, 96}, {6, 96}},
                  GetParam());
}

// A product's tile at a time, whatever the weight's size.
TEST(QuantizedProducts, NeverDequantizeAWholeWeight) {
  constexpr int64_t kManyOutputs = 8192, kManyInputs = 1024, kFewRows = 4;
  const at::Tensor blocks = random_blocks(kManyOutputs, kManyInputs);
  const at::Tensor input = at::randn({kFewRows, kManyInputs}).requires_grad_();
  const sherd::test::AllocatedBytes bytes;
  ops::linear(input, blocks).sum().backward();
  EXPECT_LT(bytes.peak(), kManyOutputs * kManyInputs * 4 / 8);
}

}  // namespace
}  // namespace sherd::ops
