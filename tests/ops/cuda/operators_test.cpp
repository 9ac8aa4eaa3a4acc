// Operators over the back end for GPUs, forward and back through autograd, beside the plain ones in
// fp64: each of them, and layers of them as models have them.

#include <functional>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/bias_gelu.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/plain_operators.h"
#include "ops/q8_0.h"
#include "ops/rms_norm.h"
#include "ops/rotary.h"
#include "ops/swiglu_linear.h"
#include "ops/with_backend.h"
#include "tests/ops/cuda/tested.h"
#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

using cuda::test::tested_backend;
using cuda::test::tested_device;

constexpr int64_t kTokens = 11, kWidth = 64, kHeads = 4, kKeyHeads = 2, kHeadSize = 16,
                  kHidden = 88, kVocabulary = 96;
constexpr double kEpsilon = 1e-5;

at::Tensor heads_of(const at::Tensor& rows, int64_t heads) {
  return rows.view({kTokens, heads, kHeadSize});
}

Documents documents() {
  return Documents::of_lengths(std::vector<int64_t>{4, 1, 6});
}

at::Tensor ids_on(const at::Tensor& like) {
  return (at::arange(kTokens, at::kLong) * 37 % 5).to(like.device());
}

// Llama's layer, with its embedding and its loss in several chunks.
const std::vector<std::vector<int64_t>> kLlamaShapes = {{kVocabulary, kWidth},
                                                        {kWidth},
                                                        {kHeads * kHeadSize, kWidth},
                                                        {kKeyHeads * kHeadSize, kWidth},
                                                        {kKeyHeads * kHeadSize, kWidth},
                                                        {kWidth, kHeads* kHeadSize},
                                                        {kWidth},
                                                        {kHidden, kWidth},
                                                        {kHidden, kWidth},
                                                        {kWidth, kHidden},
                                                        {kVocabulary, kWidth}};
at::Tensor llama(const Tensors& in) {
  const at::Tensor ids = ids_on(in[0]);
  const RotaryTables tables = rotary_tables(at::arange(1, kHeadSize / 2 + 1, at::kFloat) * 0.1, 20);
  const auto of_tokens = [&](const at::Tensor& table) {
    return table.index_select(0, documents().positions())
        .view({kTokens, 1, 1, -1})
        .to(in[0].device());
  };
  const RotaryTables angles{of_tokens(tables.cosine), of_tokens(tables.sine)};
  const auto turned = [&](const at::Tensor& heads) {
    return rotary(heads.unsqueeze(2), angles).squeeze(2);
  };
  const at::Tensor x = ops::embedding(ids, in[0]);
  const at::Tensor n = rms_norm(x, in[1], kEpsilon);
  const Tensors parts = linears_after_norm(n, {in[2], in[3], in[4]});
  const at::Tensor query = turned(heads_of(parts[0], kHeads));
  const at::Tensor key = turned(heads_of(parts[1], kKeyHeads));
  const at::Tensor value = heads_of(parts[2], kKeyHeads);
  const at::Tensor mixed = ops::linear(attention(query, key, value, documents()), in[5]);
  const NormalisedSum sum = add_rms_norm(x, mixed, in[6], kEpsilon);
  const Tensors gated = linears_after_norm(sum.normalised, {in[7], in[8]});
  const at::Tensor out = swiglu_linear(gated[0], gated[1], in[9]);
  return linear_cross_entropy(sum.sum + out, in[10], ids, /*chunk_tokens=*/4);
}

// The rest of Gemma's layer, and of OLMo's: norms whose weights are applied in fp32, GeGLU, and a
// loss of capped logits with weights of rows.
const std::vector<std::vector<int64_t>> kGemmaShapes = {
    {kVocabulary, kWidth}, {kWidth},          {kWidth},
    {kHidden, kWidth},     {kHidden, kWidth}, {kWidth, kHidden},
    {kVocabulary, kWidth}};
at::Tensor gemma(const Tensors& in) {
  const at::Tensor ids = ids_on(in[0]);
  const at::Tensor weights = at::arange(1, kTokens + 1, at::kFloat).mul(0.2).to(in[0].device());
  const at::Tensor x = ops::embedding(ids, in[0]);
  const at::Tensor n = rms_norm(x, in[1], kEpsilon, RmsGain::OnePlus);
  const NormalisedSum sum = add_rms_norm(x, n, in[2], kEpsilon, RmsGain::Wide);
  const Tensors gated = linears_after_norm(sum.normalised, {in[3], in[4]});
  const at::Tensor out = geglu_linear(gated[0], gated[1], in[5]);
  return linear_cross_entropy(sum.sum + out, in[6], ids, /*chunk_tokens=*/4, {2, 5}, weights);
}

// BLOOM's, with its loss in one chunk.
const std::vector<std::vector<int64_t>> kBloomShapes = {{kVocabulary, kWidth},
                                                        {kWidth},
                                                        {kWidth},
                                                        {3 * kWidth, kWidth},
                                                        {3 * kWidth},
                                                        {kWidth, kWidth},
                                                        {kWidth},
                                                        {kWidth},
                                                        {kWidth},
                                                        {kHidden, kWidth},
                                                        {kHidden},
                                                        {kWidth, kHidden}};
at::Tensor bloom(const Tensors& in) {
  const at::Tensor ids = ids_on(in[0]);
  const at::Tensor slopes = at::arange(1, kHeads + 1, at::kFloat).mul(0.1).to(in[0].device());
  const at::Tensor x = ops::embedding(ids, in[0]);
  const at::Tensor n = ops::layer_norm(x, in[1], in[2], kEpsilon);
  const at::Tensor packed =
      linear_after_norm(n, in[3], in[4]).view({kTokens, kHeads, 3, kHeadSize});
  const at::Tensor mixed = ops::linear(
      attention(packed.select(2, 0), packed.select(2, 1), packed.select(2, 2), documents(), slopes),
      in[5], in[6]);
  const NormalisedSum sum = add_layer_norm(x, mixed, in[7], in[8], kEpsilon);
  const at::Tensor hidden = ops::bias_gelu(linear_after_norm(sum.normalised, in[9]), in[10]);
  return linear_cross_entropy(sum.sum + ops::linear(hidden, in[11]), in[0], ids);
}

class CudaOperators : public testing::TestWithParam<c10::ScalarType> {
 protected:
  // Values, and gradients of all leaves; rounding of layers behind each other adds up.
  static void expect_fp64s(const Formula& formula, const std::vector<std::vector<int64_t>>& shapes,
                           bool are_side_by_side = false) {
    const double tolerance = 3 * tolerance_of(GetParam());
    Tensors leaves, exact;
    for (const auto& leaf : random_leaves(shapes, GetParam())) {
      const at::Tensor scaled = (leaf.detach() * (leaf.dim() == 1 ? 1 : 0.3));
      exact.push_back(scaled.to(at::kDouble).requires_grad_());
      leaves.push_back(scaled.to(tested_device()).requires_grad_());
    }
    if (are_side_by_side) {
      leaves = side_by_side(leaves);
    }
    const at::Tensor expected = of_plain(formula, exact);
    expected.backward();
    const WithBackend back_end(tested_backend());
    const at::Tensor found = formula(leaves);
    found.backward();
    expect_close(found.detach().cpu(), expected, tolerance, "loss");
    for (size_t i = 0; i < leaves.size(); ++i) {
      SCOPED_TRACE("leaf " + std::to_string(i));
      expect_close(leaves[i].grad().cpu(), exact[i].grad(), tolerance, "gradient");
    }
  }

 private:
  // As a sharded unit's parameters lie.
  static Tensors side_by_side(const Tensors& leaves) {
    Tensors flat, views;
    int64_t begin = 0;
    for (const at::Tensor& leaf : leaves) {
      flat.push_back(leaf.detach().flatten());
    }
    const at::Tensor all = at::cat(flat);
    for (const at::Tensor& leaf : leaves) {
      const at::Tensor part = all.narrow(0, begin, leaf.numel());
      views.push_back(part.view(leaf.sizes()).detach().requires_grad_());
      begin += leaf.numel();
    }
    return views;
  }
  static at::Tensor of_plain(const Formula& formula, const Tensors& leaves) {
    const PlainOperators plain;
    return formula(leaves);
  }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaOperators,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf), dtype_name);

TEST_P(CudaOperators, ALayerOfLlamaTrainsAsInFp64) {
  expect_fp64s(llama, kLlamaShapes);
}

TEST_P(CudaOperators, ALayerOfLlamaOfWeightsSideBySideTrainsAsInFp64) {
  expect_fp64s(llama, kLlamaShapes, /*are_side_by_side=*/true);
}

TEST_P(CudaOperators, NormsGatesAndLossOfGemmaTrainAsInFp64) {
  expect_fp64s(gemma, kGemmaShapes);
}

TEST_P(CudaOperators, ALayerOfBloomTrainsAsInFp64) {
  expect_fp64s(bloom, kBloomShapes);
}

// Two that lie side by side, and one behind a gate.
TEST_P(CudaOperators, FrozenWeightsIn8BitsMultiplyAsTheirNumbersDo) {
  constexpr int64_t kInner = 96;
  const auto quantized = [](int64_t rows, int64_t columns) {
    return q8_0::quantized(at::randn({rows, columns}) * 0.1);
  };
  const at::Tensor gate_up = quantized(2 * kInner, kWidth), down = quantized(kWidth, kInner);
  const auto as = [](const at::Tensor& blocks, const at::Tensor& like) {
    return like.scalar_type() == at::kDouble ? q8_0::dequantized(blocks, at::kDouble)
                                             : blocks.to(like.device());
  };
  const auto gated_part = [&](const Tensors& in) {
    const at::Tensor weights = as(gate_up, in[0]);
    const at::Tensor n = rms_norm(in[0], in[1], kEpsilon);
    const Tensors gated =
        linears_after_norm(n, {weights.narrow(0, 0, kInner), weights.narrow(0, kInner, kInner)});
    return swiglu_linear(gated[0], gated[1], as(down, in[0])).square().mean();
  };
  expect_fp64s(gated_part, {{kTokens, kWidth}, {kWidth}});
}

}  // namespace
}  // namespace sherd::ops
