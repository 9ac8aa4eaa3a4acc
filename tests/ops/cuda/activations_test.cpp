// SwiGLU, GELU with a bias and rotation of ops/cuda beside fp64, played in several orders of
// threads.

#include "ops/cuda/kernels/activations.cuh"

#include "tests/ops/cuda/played.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr int kFewThreads = 32;
constexpr int64_t kBlocks = 3;

template <class T>
class Activations : public testing::Test {
 protected:
  static constexpr int64_t kRows = 7;
  static constexpr int64_t kWidth = 3 * 64;  // more than the threads take at once, and no multiple
  const at::Tensor a = random<T>({kRows, kWidth}, 1);
  const at::Tensor b = random<T>({kRows, kWidth}, 2);
  const at::Tensor bias = random<T>({kWidth}, 3);
  const at::Tensor grad = random<T>({kRows, kWidth}, 4);
  const at::Tensor out = unwritten<T>({kRows, kWidth});
  const at::Tensor other = unwritten<T>({kRows, kWidth});
};

using ActivationDtypes = testing::Types<float, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(Activations, ActivationDtypes);

at::Tensor wide(const at::Tensor& tensor) {
  return tensor.to(at::kDouble);
}

TYPED_TEST(Activations, SwiGluIsThatOfFp64) {
  using T = TypeParam;
  const int64_t numel = this->a.numel();
  play(kBlocks, kFewThreads,
       [&] {
         swiglu<T, kFewThreads>(
             {data<T>(this->a), data<T>(this->b), data<T>(this->out), numel, numel, numel});
       },
       {this->out});
  expect_near<T>(this->out, reference().swiglu(wide(this->a), wide(this->b)), "out");
  play(kBlocks, kFewThreads,
       [&] {
         swiglu_backward<T, kFewThreads>({data<T>(this->grad), data<T>(this->a), data<T>(this->b),
                                          data<T>(this->out), data<T>(this->other), nullptr, numel,
                                          numel, numel, numel});
       },
       {this->out, this->other});
  const SwiGluGradients expected =
      reference().swiglu_backward(wide(this->grad), wide(this->a), wide(this->b));
  expect_near<T>(this->out, expected.gate, "gradient of the gate");
  expect_near<T>(this->other, expected.up, "gradient of what it gates");
}

// Gate and up side by side, as one product leaves them, and gradients as one is to take them.
TYPED_TEST(Activations, SwiGluOfColumnsIsThatOfFp64) {
  using T = TypeParam;
  constexpr int64_t width = Activations<T>::kWidth / 3, wider = Activations<T>::kWidth;
  const auto columns = [](const at::Tensor& matrix, int64_t index) {
    return matrix.narrow(1, index * width, width);
  };
  const at::Tensor gate = columns(this->a, 0), up = columns(this->a, 2);
  const at::Tensor grads = columns(this->grad, 0).contiguous();
  const at::Tensor result = unwritten<T>(grads.sizes());
  play(kBlocks, kFewThreads,
       [&] {
         swiglu<T, kFewThreads>(
             {data<T>(gate), data<T>(up), data<T>(result), grads.numel(), width, wider});
       },
       {result});
  expect_near<T>(result, reference().swiglu(wide(gate), wide(up)), "out");
  const at::Tensor both = unwritten<T>({this->kRows, 2 * width});
  const at::Tensor product = unwritten<T>(grads.sizes());
  play(kBlocks, kFewThreads,
       [&] {
         swiglu_backward<T, kFewThreads>({data<T>(grads), data<T>(gate), data<T>(up), data<T>(both),
                                          data<T>(both) + width, data<T>(product), grads.numel(),
                                          width, wider, 2 * width});
       },
       {both, product});
  const SwiGluGradients expected = reference().swiglu_backward(wide(grads), wide(gate), wide(up));
  expect_near<T>(columns(both, 0), expected.gate, "gradient of the gate");
  expect_near<T>(columns(both, 1), expected.up, "gradient of what it gates");
  EXPECT_TRUE(at::equal(product, result)) << "the bits that forward has";
}

TYPED_TEST(Activations, BiasGeluIsThatOfFp64) {
  using T = TypeParam;
  constexpr int64_t width = Activations<T>::kWidth;
  play(kBlocks, kFewThreads,
       [&] {
         bias_gelu<T, kFewThreads>(data<T>(this->a), data<T>(this->bias), data<T>(this->out),
                                   this->a.numel(), width);
       },
       {this->out});
  expect_near<T>(this->out, reference().bias_gelu(wide(this->a), wide(this->bias)), "out");
  constexpr int64_t kParts = 2;
  constexpr int64_t kTiles = (width + kTile<Pack<T>::kCount> - 1) / kTile<Pack<T>::kCount>;
  const at::Tensor parts = unwritten<float>({kParts, width});
  play(kParts * kTiles, 2 * kFewThreads,
       [&] {
         bias_gelu_backward<T, 2 * kFewThreads>({data<T>(this->grad), data<T>(this->a),
                                                 data<T>(this->bias), data<T>(this->out),
                                                 data<float>(parts), this->kRows, width});
       },
       {this->out, parts});
  const BiasGeluGradients expected =
      reference().bias_gelu_backward(wide(this->grad), wide(this->a), wide(this->bias), true);
  expect_near<T>(this->out, expected.input, "gradient of the input");
  expect_near<float>(parts.sum(0), expected.bias, "gradient of the bias, which is not rounded");
}

TYPED_TEST(Activations, RotaryIsThatOfFp64) {
  using T = TypeParam;
  constexpr int64_t kTokens = 7, kHeads = 3, kHalf = 32;
  const at::Tensor cosine = random<float>({kTokens, kHalf}, 5),
                   sine = random<float>({kTokens, kHalf}, 6);
  for (const int direction : {1, -1}) {
    play(kBlocks, kFewThreads,
         [&] {
           rotary<T, kFewThreads>({.input = data<T>(this->a),
                                   .cosine = data<float>(cosine),
                                   .sine = data<float>(sine),
                                   .out = data<T>(this->out),
                                   .input_strides = {kHeads * 2 * kHalf, 2 * kHalf, 0},
                                   .table_strides = {kHalf, 0, 0},
                                   .batch = kTokens,
                                   .heads = kHeads,
                                   .tokens = 1,
                                   .half = kHalf,
                                   .direction = static_cast<float>(direction)});
         },
         {this->out});
    const at::Tensor heads = wide(this->a).view({kTokens, kHeads, 2 * kHalf});
    const at::Tensor expected =
        reference().rotary(heads, wide(cosine).unsqueeze(1), wide(sine).unsqueeze(1), direction);
    expect_near<T>(this->out, expected.reshape({kTokens, kHeads * 2 * kHalf}), "out");
  }
}

}  // namespace
}  // namespace sherd::ops::cuda
