// RMSNorm and LayerNorm of ops/cuda beside fp64, played in several orders of threads.

#include "ops/cuda/kernels/norms.cuh"

#include <stdexcept>

#include "ops/cuda/kernels/norm_gradients.cuh"
#include "tests/ops/cuda/played.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr int kNormThreads = 64;
constexpr int kBackThreads = 128;
constexpr int kPacks = 2;
constexpr int64_t kRows = 13;
constexpr int64_t kTwoBlocks = 2;
constexpr double kEpsilon = 1e-5;

template <class T, RmsGain kGain = RmsGain::Rounded>
class NormsWithGain : public testing::Test {
 protected:
  // The last packs of a row have no thread's full turn.
  explicit NormsWithGain(int64_t of = kNormThreads * kPacks * Pack<T>::kCount - 3 * Pack<T>::kCount)
      : width(of) {}
  static constexpr float kOffset = kGain == RmsGain::OnePlus ? 1 : 0;
  static constexpr bool kIsWide = kGain != RmsGain::Rounded;
  const int64_t width;
  const at::Tensor input = random<T>({kRows, width}, 1);
  const at::Tensor residual = random<T>({kRows, width}, 2);
  const at::Tensor weight = random<T>({width}, 3);
  const at::Tensor bias = random<T>({width}, 4);
  const at::Tensor grad = random<T>({kRows, width}, 5);
  const at::Tensor grad_sum = random<T>({kRows, width}, 6);
  const at::Tensor sum = unwritten<T>({kRows, width});
  const at::Tensor normalised = unwritten<T>({kRows, width});
  const at::Tensor statistics = unwritten<float>({2, kRows});

  [[nodiscard]] NormRows<T> rows(bool has_residual) const {
    return {data<T>(input),
            has_residual ? data<T>(residual) : nullptr,
            data<T>(weight),
            data<T>(bias),
            has_residual ? data<T>(sum) : nullptr,
            data<T>(normalised),
            data<float>(statistics),
            kRows,
            static_cast<int>(width),
            static_cast<float>(kEpsilon),
            kGain != RmsGain::Rounded,
            kOffset};
  }
  [[nodiscard]] static NormParameters parameters(const at::Tensor& weight, const at::Tensor& bias) {
    return {weight.to(at::kDouble), bias.defined() ? bias.to(at::kDouble) : bias, kEpsilon, kGain};
  }

  template <bool kIsLayerNorm>
  std::set<emulator::Barrier> check_forward(bool has_residual) {
    std::vector<at::Tensor> outputs = {normalised, statistics};
    if (has_residual) {
      outputs.push_back(sum);
    }
    auto met = play(
        kRows, kNormThreads,
        [this, has_residual] {
          norm<T, kNormThreads, kPacks, kIsLayerNorm, kIsWide>(rows(has_residual));
        },
        outputs);
    const at::Tensor of = has_residual ? (input + residual) : input;  // rounded to T, as the sum is
    const NormOutput expected = reference().norm(
        {of.to(at::kDouble), at::Tensor()}, parameters(weight, kIsLayerNorm ? bias : at::Tensor()));
    expect_near<T>(normalised, expected.normalised, "normalised");
    expect_near<float>(statistics, expected.statistics.reshape({2, kRows}), "statistics");
    if (has_residual) {
      EXPECT_TRUE(at::equal(sum, of));
    }
    return met;
  }

  // What backward writes, of so many parts of the weight's and the bias's gradient.
  struct Back {
    at::Tensor grad_input;
    at::Tensor weight_parts;
    at::Tensor bias_parts;
    [[nodiscard]] std::vector<at::Tensor> outputs() const {
      return bias_parts.defined() ? std::vector<at::Tensor>{grad_input, weight_parts, bias_parts}
                                  : std::vector<at::Tensor>{grad_input, weight_parts};
    }
  };
  [[nodiscard]] Back back(int64_t parts, bool has_bias_parts) const {
    return {unwritten<T>({kRows, width}), unwritten<float>({parts, width}),
            has_bias_parts ? unwritten<float>({parts, width}) : at::Tensor()};
  }
  [[nodiscard]] NormBackwardRows<T> rows_of(const Back& to, bool has_grad_sum) const {
    return {data<T>(grad),
            has_grad_sum ? data<T>(grad_sum) : nullptr,
            data<T>(input),
            data<T>(weight),
            data<float>(statistics),
            data<T>(to.grad_input),
            data<float>(to.weight_parts),
            data<float>(to.bias_parts),
            kRows,
            static_cast<int>(width),
            kGain != RmsGain::Rounded,
            kOffset};
  }
  template <bool kIsLayerNorm>
  void expect_right(const Back& found, bool has_grad_sum) const {
    const at::Tensor x = input.to(at::kDouble);
    const NormParameters wide = parameters(weight, kIsLayerNorm ? bias : at::Tensor());
    const NormInputGradients expected = reference().norm_backward(
        {grad.to(at::kDouble), has_grad_sum ? grad_sum.to(at::kDouble) : at::Tensor()}, x, wide,
        reference().norm({x, at::Tensor()}, wide).statistics, {true, kIsLayerNorm});
    expect_near<T>(found.grad_input, expected.sum, "gradient of the input");
    expect_near<T>(found.weight_parts.sum(0), expected.weight, "gradient of the weight");
    if (found.bias_parts.defined()) {
      expect_near<T>(found.bias_parts.sum(0), expected.bias, "gradient of the bias");
    }
  }

  // Two blocks, of which one has more rows; kRowWarps warps for a row.
  template <bool kIsLayerNorm, int kRowWarps>
  std::set<emulator::Barrier> check_backward(bool has_grad_sum) {
    check_forward<kIsLayerNorm>(/*has_residual=*/false);
    const Back to = back(kTwoBlocks, kIsLayerNorm);
    const NormBackwardRows<T> of = rows_of(to, has_grad_sum);
    auto met = play(
        kTwoBlocks, kBackThreads,
        [of] { norm_backward<T, kBackThreads, kRowWarps, kIsLayerNorm, kIsWide>(of); },
        to.outputs());
    expect_right<kIsLayerNorm>(to, has_grad_sum);
    return met;
  }

  // Of rows that are read twice.
  template <bool kIsLayerNorm>
  void check_wide_backward(bool has_grad_sum) {
    check_forward<kIsLayerNorm>(/*has_residual=*/false);
    const Back to = back(kTwoBlocks, /*has_bias_parts=*/false);
    const NormBackwardRows<T> of = rows_of(to, has_grad_sum);
    play(kRows, kNormThreads,
         [of] { norm_input_gradient<T, kNormThreads, kIsLayerNorm, kIsWide>(of); },
         {to.grad_input});
    const int64_t tile = kTile<Pack<T>::kCount>;
    play(kTwoBlocks * ((width + tile - 1) / tile), kNormThreads,
         [of] { norm_weight_gradient<T, kNormThreads, kIsLayerNorm, kIsWide>(of); },
         {to.weight_parts});
    expect_right<kIsLayerNorm>(to, has_grad_sum);
  }
};

template <class T>
class Norms : public NormsWithGain<T> {};

using NormDtypes = testing::Types<float, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(Norms, NormDtypes);

TYPED_TEST(Norms, ForwardIsThatOfFp64) {
  for (const bool has_residual : {false, true}) {
    this->template check_forward</*kIsLayerNorm=*/false>(has_residual);
    this->template check_forward</*kIsLayerNorm=*/true>(has_residual);
  }
}

// A row of one warp, of some, and of all of a block.
TYPED_TEST(Norms, BackwardIsThatOfFp64) {
  for (const bool has_grad_sum : {false, true}) {
    this->template check_backward</*kIsLayerNorm=*/false, 2>(has_grad_sum);
    this->template check_backward</*kIsLayerNorm=*/true, 2>(has_grad_sum);
    this->template check_backward</*kIsLayerNorm=*/false, 4>(has_grad_sum);
    this->template check_backward</*kIsLayerNorm=*/true, 4>(has_grad_sum);
  }
}

TYPED_TEST(Norms, BackwardOfRowsThatAreReadTwiceIsThatOfFp64) {
  for (const bool has_grad_sum : {false, true}) {
    this->template check_wide_backward</*kIsLayerNorm=*/false>(has_grad_sum);
    this->template check_wide_backward</*kIsLayerNorm=*/true>(has_grad_sum);
  }
}

// RMSNorm whose weight is applied in fp32.
template <class T>
class WideNorms : public NormsWithGain<T, RmsGain::Wide> {};
TYPED_TEST_SUITE(WideNorms, NormDtypes);
template <class T>
class OnePlusNorms : public NormsWithGain<T, RmsGain::OnePlus> {};
TYPED_TEST_SUITE(OnePlusNorms, NormDtypes);

TYPED_TEST(WideNorms, ForwardAndBackwardAreThoseOfFp64) {
  this->template check_forward</*kIsLayerNorm=*/false>(/*has_residual=*/true);
  this->template check_backward</*kIsLayerNorm=*/false, 2>(/*has_grad_sum=*/true);
  this->template check_wide_backward</*kIsLayerNorm=*/false>(/*has_grad_sum=*/true);
}

TYPED_TEST(OnePlusNorms, ForwardAndBackwardAreThoseOfFp64) {
  this->template check_forward</*kIsLayerNorm=*/false>(/*has_residual=*/true);
  this->template check_backward</*kIsLayerNorm=*/false, 2>(/*has_grad_sum=*/true);
  this->template check_wide_backward</*kIsLayerNorm=*/false>(/*has_grad_sum=*/true);
}

template <class T>
class NarrowNorms : public NormsWithGain<T> {
 protected:
  NarrowNorms()
      : NormsWithGain<T>(gpu::kWarp * kRowPacks * Pack<T>::kCount - 3 * Pack<T>::kCount) {}
};
TYPED_TEST_SUITE(NarrowNorms, NormDtypes);

TYPED_TEST(NarrowNorms, BackwardOfAWarpForEachRowIsThatOfFp64) {
  for (const bool has_grad_sum : {false, true}) {
    this->template check_backward</*kIsLayerNorm=*/false, 1>(has_grad_sum);
    this->template check_backward</*kIsLayerNorm=*/true, 1>(has_grad_sum);
  }
}

// Each barrier, taken away, shows in some order of the threads.
void expect_needed(const std::set<emulator::Barrier>& barriers, int64_t blocks, int threads,
                   const std::vector<at::Tensor>& outputs, const std::function<void()>& kernel) {
  std::vector<at::Tensor> expected;
  for (const at::Tensor& output : outputs) {
    expected.push_back(output.clone());
  }
  const auto are_right = [&] {
    return std::equal(outputs.begin(), outputs.end(), expected.begin(),
                      [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); });
  };
  for (const emulator::Barrier& barrier : barriers) {
    bool shows = false;
    for (uint32_t seed = 1; seed <= 10 && !shows; ++seed) {
      try {
        emulator::play(blocks, threads, kernel, {.seed = seed, .without = barrier});
        shows = !are_right();
      } catch (const std::logic_error&) {
        shows = true;
      }
    }
    EXPECT_TRUE(shows) << barrier.file << ":" << barrier.line;
  }
}

TYPED_TEST(Norms, NeedEachBarrier) {
  const auto barriers = this->template check_forward</*kIsLayerNorm=*/true>(true);
  EXPECT_EQ(barriers.size(), 2U);
  expect_needed(barriers, kRows, kNormThreads, {this->normalised},
                [this] { norm<TypeParam, kNormThreads, kPacks, true>(this->rows(true)); });
}

TYPED_TEST(Norms, NeedEachBarrierBack) {
  const auto barriers = this->template check_backward</*kIsLayerNorm=*/true, 2>(true);
  EXPECT_EQ(barriers.size(), 3U);
  const auto to = this->back(kTwoBlocks, true);
  const NormBackwardRows<TypeParam> of = this->rows_of(to, true);
  const auto kernel = [of] { norm_backward<TypeParam, kBackThreads, 2, true>(of); };
  emulator::play(kTwoBlocks, kBackThreads, kernel);
  expect_needed(barriers, kTwoBlocks, kBackThreads, to.outputs(), kernel);
}

}  // namespace
}  // namespace sherd::ops::cuda
