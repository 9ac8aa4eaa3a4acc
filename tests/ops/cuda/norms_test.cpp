// RMSNorm and LayerNorm of ops/cuda beside fp64, played in several orders of threads.

#include "ops/cuda/kernels/norms.cuh"

#include <stdexcept>

#include "tests/ops/cuda/played.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr int kNormThreads = 64;
constexpr int kPacks = 2;
constexpr int64_t kRows = 5;
constexpr double kEpsilon = 1e-5;

template <class T>
class Norms : public testing::Test {
 protected:
  // The last packs of a row have no thread's full turn.
  const int64_t width = kNormThreads * kPacks * Pack<T>::kCount - 3 * Pack<T>::kCount;
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
            static_cast<float>(kEpsilon)};
  }
  [[nodiscard]] static NormParameters parameters(const at::Tensor& weight, const at::Tensor& bias) {
    return {weight.to(at::kDouble), bias.defined() ? bias.to(at::kDouble) : bias, kEpsilon};
  }

  template <bool kIsLayerNorm>
  std::set<emulator::Barrier> check_forward(bool has_residual) {
    std::vector<at::Tensor> outputs = {normalised, statistics};
    if (has_residual) {
      outputs.push_back(sum);
    }
    auto met = play(
        kRows, kNormThreads,
        [this, has_residual] { norm<T, kNormThreads, kPacks, kIsLayerNorm>(rows(has_residual)); },
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

  // Two blocks, of which one has more rows.
  template <bool kIsLayerNorm>
  std::set<emulator::Barrier> check_backward(bool has_grad_sum) {
    constexpr int64_t kTwoBlocks = 2;
    check_forward<kIsLayerNorm>(/*has_residual=*/false);
    const at::Tensor grad_input = unwritten<T>({kRows, width});
    const at::Tensor weight_parts = unwritten<float>({kTwoBlocks, width});
    const at::Tensor bias_parts = unwritten<float>({kTwoBlocks, width});
    const NormBackwardRows<T> of{data<T>(grad),
                                 has_grad_sum ? data<T>(grad_sum) : nullptr,
                                 data<T>(input),
                                 data<T>(weight),
                                 data<float>(statistics),
                                 data<T>(grad_input),
                                 data<float>(weight_parts),
                                 kIsLayerNorm ? data<float>(bias_parts) : nullptr,
                                 kRows,
                                 static_cast<int>(width)};
    auto met = play(
        kTwoBlocks, kNormThreads,
        [of] { norm_backward<T, kNormThreads, kPacks, kIsLayerNorm>(of); },
        kIsLayerNorm ? std::vector<at::Tensor>{grad_input, weight_parts, bias_parts}
                     : std::vector<at::Tensor>{grad_input, weight_parts});
    const at::Tensor x = input.to(at::kDouble);
    const NormParameters wide = parameters(weight, kIsLayerNorm ? bias : at::Tensor());
    const NormInputGradients expected = reference().norm_backward(
        {grad.to(at::kDouble), has_grad_sum ? grad_sum.to(at::kDouble) : at::Tensor()}, x, wide,
        reference().norm({x, at::Tensor()}, wide).statistics, {true, kIsLayerNorm});
    expect_near<T>(grad_input, expected.sum, "gradient of the input");
    expect_near<T>(weight_parts.sum(0), expected.weight, "gradient of the weight");
    if (kIsLayerNorm) {
      expect_near<T>(bias_parts.sum(0), expected.bias, "gradient of the bias");
    }
    return met;
  }
};

using NormDtypes = testing::Types<float, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(Norms, NormDtypes);

TYPED_TEST(Norms, ForwardIsThatOfFp64) {
  for (const bool has_residual : {false, true}) {
    this->template check_forward</*kIsLayerNorm=*/false>(has_residual);
    this->template check_forward</*kIsLayerNorm=*/true>(has_residual);
  }
}

TYPED_TEST(Norms, BackwardIsThatOfFp64) {
  for (const bool has_grad_sum : {false, true}) {
    this->template check_backward</*kIsLayerNorm=*/false>(has_grad_sum);
    this->template check_backward</*kIsLayerNorm=*/true>(has_grad_sum);
  }
}

// Each barrier, taken away, shows in some order of the threads.
TYPED_TEST(Norms, NeedEachBarrier) {
  const auto barriers = this->template check_forward</*kIsLayerNorm=*/true>(true);
  EXPECT_EQ(barriers.size(), 2U);
  const at::Tensor expected = this->normalised.clone();
  for (const emulator::Barrier& barrier : barriers) {
    bool shows = false;
    for (uint32_t seed = 1; seed <= 10 && !shows; ++seed) {
      try {
        emulator::play(kRows, kNormThreads,
                       [this] { norm<TypeParam, kNormThreads, kPacks, true>(this->rows(true)); },
                       {.seed = seed, .without = barrier});
        shows = !at::equal(this->normalised, expected);
      } catch (const std::logic_error&) {
        shows = true;
      }
    }
    EXPECT_TRUE(shows) << barrier.file << ":" << barrier.line;
  }
}

}  // namespace
}  // namespace sherd::ops::cuda
