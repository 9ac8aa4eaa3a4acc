// Each function of the back end for GPUs beside the plain one's in fp64, in shapes that its kernels
// serve and in shapes that they leave to the plain back end.

#include <functional>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/ops/cuda/tested.h"
#include "tests/ops/parity.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

class CudaBackend : public testing::TestWithParam<c10::ScalarType> {
 protected:
  [[nodiscard]] static at::Tensor random(at::IntArrayRef shape) {
    return at::randn(shape, at::kDouble).to(GetParam()).to(tested_device());
  }
  [[nodiscard]] static at::Tensor wide(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.cpu().to(at::kDouble) : tensor;
  }
  static void expect_near(const at::Tensor& found, const at::Tensor& expected, const char* what) {
    expect_close(found.cpu(), expected, tolerance_of(GetParam()), what);
  }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaBackend, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         dtype_name);

struct NormCase {
  std::vector<int64_t> shape;
  bool is_layer_norm;
  RmsGain gain = RmsGain::Rounded;
};

void check_norm(const std::function<at::Tensor(at::IntArrayRef)>& random, const NormCase& of,
                const std::function<at::Tensor(const at::Tensor&)>& wide,
                const std::function<void(const at::Tensor&, const at::Tensor&, const char*)>& near,
                bool is_sum) {
  const int64_t width = of.shape.back();
  const at::Tensor none;
  const NormInputs inputs{random(of.shape), is_sum ? random(of.shape) : none};
  const NormParameters parameters{random({width}), of.is_layer_norm ? random({width}) : none, 1e-5,
                                  of.gain};
  const NormParameters wide_parameters{wide(parameters.weight), wide(parameters.bias), 1e-5,
                                       of.gain};
  const NormOutput output = tested_backend().norm(inputs, parameters);
  if (is_sum) {
    EXPECT_TRUE(at::equal(output.sum, inputs.input + inputs.residual));
  }
  const at::Tensor sum = wide(output.sum);
  const NormOutput expected = reference().norm({sum, none}, wide_parameters);
  near(output.normalised, expected.normalised, "normalised");
  const NormGradients gradients{random(of.shape), is_sum ? random(of.shape) : none};
  const WantedGradients wanted{is_sum || of.is_layer_norm, of.is_layer_norm};
  const NormInputGradients found =
      tested_backend().norm_backward(gradients, output.sum, parameters, output.statistics, wanted);
  const NormInputGradients of_fp64 =
      reference().norm_backward({wide(gradients.normalised), wide(gradients.sum)}, sum,
                                wide_parameters, expected.statistics, wanted);
  near(found.sum, of_fp64.sum, "gradient of the sum");
  EXPECT_EQ(found.weight.defined(), wanted.weight);
  EXPECT_EQ(found.bias.defined(), wanted.bias);
  if (wanted.weight) {
    near(found.weight, of_fp64.weight, "gradient of the weight");
  }
  if (wanted.bias) {
    near(found.bias, of_fp64.bias, "gradient of the bias");
  }
}

// One, two and four packs per thread, and more threads; more rows than parts (once: they take a
// second); backward that reads rows twice; and, left to the plain back end, rows that are no whole
// packs, and rows wider than registers hold.
TEST_P(CudaBackend, NormsAreThoseOfFp64) {
  const std::vector<std::vector<int64_t>> shapes = {{3, 24},    {2, 2, 1032}, {2, 3080},
                                                    {2060, 8},  {2, 8192},    {2, 16384},
                                                    {2, 33000}, {0, 16},      {5, 13}};
  for (const auto& shape : shapes) {
    for (const bool is_layer_norm : {false, true}) {
      for (const bool is_sum : {false, true}) {
        if (shape.front() > 256 && !(is_layer_norm && is_sum)) {
          continue;
        }
        SCOPED_TRACE(testing::Message()
                     << at::IntArrayRef(shape) << " " << is_layer_norm << is_sum);
        check_norm([](at::IntArrayRef sizes) { return random(sizes); }, {shape, is_layer_norm},
                   wide, expect_near, is_sum);
      }
    }
  }
}

TEST_P(CudaBackend, RmsNormsOfOtherGainsAreThoseOfFp64) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{3, 24}, {2, 2, 1032}, {2, 16384}, {5, 13}}) {
    for (const RmsGain gain : {RmsGain::Wide, RmsGain::OnePlus}) {
      for (const bool is_sum : {false, true}) {
        SCOPED_TRACE(testing::Message() << at::IntArrayRef(shape) << static_cast<int>(gain));
        check_norm([](at::IntArrayRef sizes) { return random(sizes); }, {shape, false, gain}, wide,
                   expect_near, is_sum);
      }
    }
  }
}

// Two roundings would differ from one in more than a tenth of all values.
TEST_P(CudaBackend, RmsNormsOfOtherGainsRoundOnce) {
  const at::Tensor input = random({64, 1024}), weight = random({1024});
  for (const RmsGain gain : {RmsGain::Wide, RmsGain::OnePlus}) {
    const at::Tensor found =
        tested_backend().norm({input, {}}, {weight, {}, 1e-5, gain}).normalised;
    const at::Tensor exact =
        reference().norm({wide(input), {}}, {wide(weight), {}, 1e-5, gain}).normalised;
    const double differing =
        found.ne(exact.to(found.device(), GetParam())).to(at::kDouble).mean().item<double>();
    EXPECT_LT(differing, GetParam() == at::kFloat ? 1.0 : 0.02) << static_cast<int>(gain);
  }
}

struct GateOperators {
  decltype(Backend::swiglu) Backend::*forward;
  decltype(Backend::swiglu_backward) Backend::*backward;
  decltype(Backend::swiglu_backward_with_product) Backend::*backward_with_product;
};
constexpr GateOperators kGates[] = {
    {&Backend::swiglu, &Backend::swiglu_backward, &Backend::swiglu_backward_with_product},
    {&Backend::geglu, &Backend::geglu_backward, &Backend::geglu_backward_with_product}};

SwiGluGradients check_gate(
    const GateOperators& of, const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
    const std::function<at::Tensor(const at::Tensor&)>& wide,
    const std::function<void(const at::Tensor&, const at::Tensor&, const char*)>& near) {
  const at::Tensor out = (tested_backend().*of.forward)(gate, up);
  near(out, (reference().*of.forward)(wide(gate), wide(up)), "out");
  const SwiGluGradients found = (tested_backend().*of.backward)(grad, gate, up);
  const SwiGluGradients expected = (reference().*of.backward)(wide(grad), wide(gate), wide(up));
  near(found.gate, expected.gate, "gradient of the gate");
  near(found.up, expected.up, "gradient of what it gates");
  // With the product in the place of its gradient: the bits that the two have.
  at::Tensor product = grad.clone(at::MemoryFormat::Contiguous);
  const SwiGluGradients both = (tested_backend().*of.backward_with_product)(product, gate, up);
  EXPECT_TRUE(at::equal(both.gate, found.gate) && at::equal(both.up, found.up));
  EXPECT_TRUE(at::equal(product, out));
  return found;
}

TEST_P(CudaBackend, GatesAreThoseOfFp64) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{3, 88}, {2, 5, 7}, {0, 8}}) {
    SCOPED_TRACE(testing::Message() << at::IntArrayRef(shape));
    const at::Tensor gate = random(shape), up = random(shape);
    const at::Tensor grad = strided_gradient(gate.cpu()).to(tested_device());
    for (const GateOperators& of : kGates) {
      static_cast<void>(check_gate(of, grad, gate, up, wide, expect_near));
    }
  }
}

// Of columns of one matrix, gradients are columns of one; of those that begin or end within a pack
// too, which the plain back end or copies serve.
TEST_P(CudaBackend, GatesOfColumnsAreThoseOfFp64) {
  for (const int64_t width : {24, 12, 7}) {
    const at::Tensor both = random({5, 2 * width}), grad = random({5, width});
    const at::Tensor gate = both.narrow(1, 0, width), up = both.narrow(1, width, width);
    for (const GateOperators& of : kGates) {
      const SwiGluGradients found = check_gate(of, grad, gate, up, wide, expect_near);
      EXPECT_EQ(found.gate.is_alias_of(found.up),
                width == 24 || (GetParam() == at::kFloat && width == 12));
    }
  }
}

// The last but one: parts of the rows, each summed by itself.
TEST_P(CudaBackend, BiasGeluIsThatOfFp64) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{3, 88}, {2, 5, 264}, {600, 16}, {2, 5, 7}}) {
    SCOPED_TRACE(testing::Message() << at::IntArrayRef(shape));
    const at::Tensor input = random(shape), bias = random({shape.back()}), grad = random(shape);
    expect_near(tested_backend().bias_gelu(input, bias),
                reference().bias_gelu(wide(input), wide(bias)), "out");
    for (const bool wants_bias : {false, true}) {
      const BiasGeluGradients found =
          tested_backend().bias_gelu_backward(grad, input, bias, wants_bias);
      const BiasGeluGradients expected =
          reference().bias_gelu_backward(wide(grad), wide(input), wide(bias), true);
      expect_near(found.input, expected.input, "gradient of the input");
      ASSERT_EQ(found.bias.defined(), wants_bias);
      if (wants_bias) {
        expect_near(found.bias, expected.bias, "gradient of the bias");
      }
    }
  }
}

// Heads of tokens as a model has them, alone and as parts of what lies side by side; heads first;
// and heads that are no whole packs.
TEST_P(CudaBackend, RotaryIsThatOfFp64) {
  const auto angles = [](at::IntArrayRef shape) {
    return at::randn(shape, at::kFloat).to(tested_device());
  };
  const std::vector<std::vector<at::Tensor>> cases = {
      {random({5, 3, 1, 32}), angles({5, 1, 1, 16}), angles({5, 1, 1, 16})},
      {random({5, 7, 1, 48}).slice(1, 2, 5), angles({5, 1, 1, 24}), angles({5, 1, 1, 24})},
      {random({2, 6, 3, 16}).transpose(1, 2), angles({6, 8}), angles({6, 8})},
      {random({2, 3, 5, 16}), angles({2, 1, 5, 8}), angles({2, 1, 5, 8})},
      {random({2, 3, 5, 10}), angles({5, 5}), angles({5, 5})},
      {random({2, 3, 5, 32}).slice(3, 1, 17), angles({5, 8}), angles({5, 8})},
      {random({2, 3, 16, 5}).transpose(2, 3), angles({5, 8}), angles({5, 8})}};
  for (const auto& in : cases) {
    for (const int direction : {1, -1}) {
      const at::Tensor found = tested_backend().rotary(in[0], in[1], in[2], direction);
      EXPECT_TRUE(found.is_contiguous());
      expect_near(found, reference().rotary(wide(in[0]), wide(in[1]), wide(in[2]), direction),
                  "out");
    }
  }
}

TEST_P(CudaBackend, CrossEntropyIsThatOfFp64) {
  for (const int64_t vocabulary : {1000, 1001}) {
    for (const int64_t rows : {0, 3}) {
      at::Tensor logits = random({rows, vocabulary});
      const at::Tensor targets = at::randint(vocabulary, {rows}, at::kLong);
      const at::Tensor targets_there = targets.to(tested_device());
      const at::Tensor wide_logits = wide(logits);
      const CrossEntropy found = tested_backend().cross_entropy(logits, targets_there);
      const CrossEntropy expected = reference().cross_entropy(wide_logits, targets);
      expect_near(found.log_sums_R, expected.log_sums_R, "log sums");
      EXPECT_NEAR(found.loss_sum.cpu().to(at::kDouble).item<double>(),
                  expected.loss_sum.item<double>(), 1e-3);
      const at::Tensor scale =
          at::full({}, 0.25, at::TensorOptions(at::kFloat).device(tested_device()));
      tested_backend().cross_entropy_backward(logits, targets_there, found.log_sums_R, scale);
      at::Tensor gradient = wide_logits.clone();
      reference().cross_entropy_backward(gradient, targets, expected.log_sums_R,
                                         at::full({}, 0.25, at::kDouble));
      expect_near(logits, gradient, "gradient");
    }
  }
}

TEST_P(CudaBackend, ProductsAreThoseOfFp64) {
  const at::Tensor a = random({24, 40}), b = random({40, 16});
  for (const auto dtype : {GetParam(), at::kFloat}) {
    at::Tensor out = at::empty({24, 16}, a.options().dtype(dtype));
    tested_backend().mm(out, a, b);
    expect_near(out, wide(a).mm(wide(b)), "product");
    expect_close(out.cpu(), wide(a).mm(wide(b)), tolerance_of(dtype), "in the output's dtype");
    tested_backend().head_logits(out, a, b.t());
    expect_near(out, wide(a).mm(wide(b)), "logits");
    at::Tensor grad = at::empty({24, 40}, a.options().dtype(dtype));
    tested_backend().head_input_gradient(grad, a.narrow(1, 0, 16), b.t());
    expect_close(grad.cpu(), wide(a).narrow(1, 0, 16).mm(wide(b).t()), tolerance_of(dtype),
                 "gradient");
  }
  EXPECT_EQ(tested_backend().mm_room_bytes(at::kFloat, GetParam(), 24, 40, 16), 0);
}

TEST_P(CudaBackend, ColumnSumsAreThoseOfFp64) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{1, 8}, {5, 264}, {600, 16}, {3, 7}, {0, 16}}) {
    SCOPED_TRACE(testing::Message() << at::IntArrayRef(shape));
    const at::Tensor matrix = random(shape);
    const at::Tensor found = tested_backend().column_sums(matrix);
    EXPECT_EQ(found.scalar_type(), at::kFloat);
    expect_close(found.cpu(), wide(matrix).sum(0), 1e-5, "sums");
    const at::Tensor other = random({shape[1], shape[0]});
    expect_close(tested_backend().column_sums(other.t()).cpu(), wide(other).sum(1), 1e-5,
                 "sums of a transposed one");
  }
}

// Into fp32; of more ids than are compared with each other; and more tokens of one id than are
// added one after the other.
TEST_P(CudaBackend, EmbeddingGradientIsThatOfFp64) {
  for (const auto dtype : {at::kFloat, GetParam()}) {
    for (const int64_t tokens : {300, 16'400}) {
      constexpr int64_t kIds = 2'000, kWidth = 8;
      const at::Tensor ids = at::randint(kIds, {tokens}, at::kLong);
      ids.slice(0, 0, tokens, 3).fill_(7);
      const at::Tensor gradient = random({tokens, kWidth}) * 0.1;
      at::Tensor out = random({kIds, kWidth}).to(dtype);
      at::Tensor expected = wide(out);
      reference().add_embedding_gradient(expected, ids, wide(gradient));
      tested_backend().add_embedding_gradient(out, ids.to(tested_device()), gradient);
      expect_close(out.cpu(), expected, tolerance_of(dtype), "gradient");
    }
  }
}

TEST_P(CudaBackend, EmbeddingGradientHasThePlainOnesBits) {
  for (const int64_t width : {40, 300, 7}) {
    for (const int64_t tokens : {0, 1, 17}) {
      const at::Tensor ids = at::randint(6, {tokens}, at::kLong);
      const at::Tensor gradient = random({tokens, 2 * width}).slice(1, 0, width);
      at::Tensor out = random({6, width});
      at::Tensor expected = out.cpu().clone();
      reference().add_embedding_gradient(expected, ids, gradient.cpu());
      tested_backend().add_embedding_gradient(out, ids.to(tested_device()), gradient);
      EXPECT_TRUE(at::equal(out.cpu(), expected)) << width << " " << tokens;
    }
  }
}

using Near = std::function<void(const at::Tensor&, const at::Tensor&, const char*)>;

// Auto: whichever.
void check_attention(const AttentionInputs& inputs, const at::Tensor& grad, const Near& near,
                     AttentionKernel expected_kernel = AttentionKernel::Auto) {
  const auto wide = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.cpu().to(at::kDouble) : tensor;
  };
  const AttentionInputs wide_inputs{wide(inputs.query), wide(inputs.key),    wide(inputs.value),
                                    inputs.documents,   wide(inputs.slopes), inputs.kernel,
                                    inputs.scores};
  const AttentionOutput output = tested_backend().attention(inputs);
  if (expected_kernel != AttentionKernel::Auto) {
    EXPECT_EQ(output.kernel, expected_kernel);
  }
  const AttentionOutput expected = reference().attention(wide_inputs);
  near(output.mixed_TD, expected.mixed_TD, "mixed");
  const bool keeps_mixed = output.kernel != AttentionKernel::Plain;
  const AttentionOutput kept{keeps_mixed ? output.mixed_TD : at::Tensor(), output.log_sums,
                             output.kernel};
  const AttentionGradients found = tested_backend().attention_backward(inputs, kept, grad);
  const AttentionGradients of_fp64 =
      reference().attention_backward(wide_inputs, expected, wide(grad));
  near(found.query, of_fp64.query, "gradient of the query");
  near(found.key, of_fp64.key, "gradient of the key");
  near(found.value, of_fp64.value, "gradient of the value");
}

TEST_P(CudaBackend, AttentionIsThatOfFp64) {
  for (const bool has_slopes : {false, true}) {
    for (const int64_t size : {32, 6}) {
      const Documents documents = Documents::of_lengths(std::vector<int64_t>{5, 70, 1, 3});
      const AttentionInputs inputs{
          random({79, 4, size}), random({79, 2, size}), random({79, 2, size}), documents,
          has_slopes ? at::arange(1, 5, at::kFloat).to(tested_device()) * 0.1 : at::Tensor()};
      check_attention(inputs, random({79, 4 * size}), expect_near);
    }
  }
}

class CudaFlashAttention : public CudaBackend {};

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaFlashAttention, testing::Values(at::kBFloat16, at::kHalf),
                         dtype_name);

// BLOOM's, of documents as long as its context and more: the steepest slope of 16 heads, the least,
// and one that is no power of two, of parts of a packed projection, the gradient with strides. Near
// the end of a document the bias is 1,600 and what matters a few units: fp32 in the products.
TEST_P(CudaFlashAttention, WithAlibiIsThatOfFp64InLongDocuments) {
  constexpr int64_t kTokens = 2300, kHeads = 3, kSize = 64;
  const at::Tensor packed = random({kTokens, kHeads, 3, kSize});
  const at::Tensor slopes =
      at::tensor({0.70710677F, 0.00390625F, 0.017F}, at::kFloat).to(tested_device());
  const AttentionInputs inputs{packed.select(2, 0), packed.select(2, 1), packed.select(2, 2),
                               Documents::of_lengths(std::vector<int64_t>{40, 2259, 1}), slopes};
  const at::Tensor grad = random({kTokens, 2 * kHeads * kSize}).slice(1, 0, kHeads * kSize);
  check_attention(inputs, grad, expect_near, AttentionKernel::Flash);
}

// Windows of one token, within a block of a kernel, of a block and one more; ALiBi with one; scales
// other than the heads' own.
TEST_P(CudaFlashAttention, InAWindowIsThatOfFp64) {
  constexpr int64_t kTokens = 300, kSize = 64;
  for (const auto& [window, has_slopes] :
       {std::pair(1, false), std::pair(17, true), std::pair(129, false), std::pair(200, false)}) {
    SCOPED_TRACE(window);
    const AttentionInputs inputs{
        random({kTokens, 4, kSize}),
        random({kTokens, 2, kSize}),
        random({kTokens, 2, kSize}),
        Documents::of_lengths(std::vector<int64_t>{40, 259, 1}),
        has_slopes ? at::arange(1, 5, at::kFloat).to(tested_device()) * 0.1 : at::Tensor(),
        AttentionKernel::Auto,
        {.scale = 0.1, .window = window}};
    check_attention(inputs, random({kTokens, 4 * kSize}), expect_near, AttentionKernel::Flash);
  }
}

TEST_P(CudaFlashAttention, LeavesASoftCapToMatrixProducts) {
  const AttentionInputs inputs{random({300, 4, 64}),
                               random({300, 2, 64}),
                               random({300, 2, 64}),
                               Documents::of_lengths(std::vector<int64_t>{40, 259, 1}),
                               {},
                               AttentionKernel::Auto,
                               {.window = 70, .soft_cap = 2}};
  check_attention(inputs, random({300, 256}), expect_near, AttentionKernel::Plain);
}

class CudaCudnnAttention : public CudaBackend {};

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaCudnnAttention, testing::Values(at::kBFloat16, at::kHalf),
                         dtype_name);

struct CudnnCase {
  int64_t documents, tokens, heads, key_heads, size;
};
// Lengths that are no multiples of 64 or 128 and longer than a head is wide, one that is, short
// ones; grouped heads, one key head, as many as queries have; the smallest head and the largest.
const CudnnCase kCudnnCases[] = {{1, 300, 4, 2, 128},
                                 {2, 256, 2, 2, 64},
                                 {2, 70, 4, 1, 32},
                                 {5, 2, 2, 1, 8},
                                 {1, 520, 2, 1, 96}};

TEST_P(CudaCudnnAttention, IsThatOfFp64) {
  for (const CudnnCase& of : kCudnnCases) {
    SCOPED_TRACE(of.tokens);
    const int64_t tokens = of.documents * of.tokens;
    const AttentionInputs inputs{random({tokens, of.heads, of.size}),
                                 random({tokens, of.key_heads, of.size}),
                                 random({tokens, of.key_heads, of.size}),
                                 Documents::of_equal_length(of.documents, of.tokens),
                                 {},
                                 AttentionKernel::Cudnn};
    check_attention(inputs, random({tokens, of.heads * of.size}), expect_near,
                    AttentionKernel::Cudnn);
  }
}

TEST_P(CudaCudnnAttention, TakesAScale) {
  const AttentionInputs inputs{random({400, 4, 64}),
                               random({400, 2, 64}),
                               random({400, 2, 64}),
                               Documents::of_equal_length(2, 200),
                               {},
                               AttentionKernel::Cudnn,
                               {.scale = 0.3}};
  check_attention(inputs, random({400, 256}), expect_near, AttentionKernel::Cudnn);
}

// Columns of one projection, and a gradient with strides: copied where cuDNN would read it wrongly.
TEST_P(CudaCudnnAttention, ReadsPartsOfAPackedProjection) {
  constexpr int64_t kTokens = 160, kHeads = 4, kSize = 64;
  const at::Tensor packed = random({2 * kTokens, kHeads, 3, kSize});
  const AttentionInputs inputs{packed.select(2, 0),
                               packed.select(2, 1),
                               packed.select(2, 2),
                               Documents::of_equal_length(2, kTokens),
                               {},
                               AttentionKernel::Cudnn};
  const at::Tensor grad = random({2 * kTokens, 2 * kHeads * kSize}).slice(1, 0, kHeads * kSize);
  check_attention(inputs, grad, expect_near, AttentionKernel::Cudnn);
}

// What a user names is computed by that.
TEST_P(CudaCudnnAttention, FlashAndMatrixProductsComputeTheSame) {
  for (const AttentionKernel kernel : {AttentionKernel::Flash, AttentionKernel::Plain}) {
    const AttentionInputs inputs{random({400, 4, 64}),
                                 random({400, 2, 64}),
                                 random({400, 2, 64}),
                                 Documents::of_equal_length(2, 200),
                                 {},
                                 kernel};
    check_attention(inputs, random({400, 256}), expect_near, kernel);
  }
}

void expect_same_bits(const std::function<std::vector<at::Tensor>()>& compute) {
  const std::vector<at::Tensor> first = compute();
  for (int again = 0; again < 2; ++again) {
    const std::vector<at::Tensor> next = compute();
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(at::equal(first[i], next[i])) << "result " << i;
    }
  }
}

// Threads run in another order each time.
TEST_P(CudaBackend, ResultsHaveTheSameBitsEveryTime) {
  const Backend& backend = tested_backend();
  const at::Tensor rows = random({20, 264}), grad = random({20, 264}), weight = random({264});
  const NormParameters parameters{weight, weight, 1e-5};
  expect_same_bits([&]() -> std::vector<at::Tensor> {
    const NormOutput norm = backend.norm({rows, grad}, parameters);
    const NormInputGradients grads =
        backend.norm_backward({grad, rows}, norm.sum, parameters, norm.statistics, {true, true});
    return {norm.normalised, norm.statistics, grads.sum, grads.weight, grads.bias};
  });
  expect_same_bits([&]() -> std::vector<at::Tensor> {
    const BiasGeluGradients gelu = backend.bias_gelu_backward(grad, rows, weight, true);
    return {gelu.input, gelu.bias, backend.column_sums(rows)};
  });
  const at::Tensor targets = at::arange(20, at::kLong).to(tested_device());
  expect_same_bits([&]() -> std::vector<at::Tensor> {
    at::Tensor table = weight.repeat({3, 1});
    backend.add_embedding_gradient(table, targets.remainder(3), rows);
    const CrossEntropy loss = backend.cross_entropy(rows, targets);
    return {table, loss.loss_sum, loss.log_sums_R};
  });
}

// A GPU is not waited for, to say so.
TEST_P(CudaBackend, ATargetOutsideMakesTheLossNaN) {
  for (const int64_t target : {-1, 16}) {
    const at::Tensor targets = at::full({2}, target, at::kLong).to(tested_device());
    const CrossEntropy found = tested_backend().cross_entropy(random({2, 16}), targets);
    EXPECT_TRUE(found.loss_sum.isnan().item<bool>());
  }
}

}  // namespace
}  // namespace sherd::ops::cuda
