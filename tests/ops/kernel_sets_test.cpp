// The loops of every instruction set that this processor has, against plain LibTorch in fp64.

#include <cmath>
#include <limits>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels.h"
#include "tests/ops/parity.h"

namespace sherd::ops::cpu {
namespace {

constexpr int64_t kRows = 5;
const std::vector<int64_t> kWidths = {1, 7, 16, 31, 33, 64, 100, 130};

/// Runs a check for each dtype, every set of this machine and every width.
template <class Check>
void for_all(const Check& check) {
  for (const KernelSet& set : kernel_sets(machine_isa())) {
    for (const int64_t width : kWidths) {
      SCOPED_TRACE(set.name + ", width " + std::to_string(width));
      check(set.of<float>(), width, float());
      check(set.of<c10::BFloat16>(), width, c10::BFloat16());
      check(set.of<c10::Half>(), width, c10::Half());
    }
  }
}

template <class T>
at::Tensor random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).to(c10::CppTypeToScalarType<T>::value);
}
template <class T>
void close(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  expect_close(actual, expected, tolerance_of(c10::CppTypeToScalarType<T>::value), what);
}
/// Expects the rows of `terms` [rows, width], added up. Terms may cancel: a difference is measured
/// beside what was added, not beside the sum.
template <class T>
void close_sum(const at::Tensor& actual, const at::Tensor& terms, const char* what) {
  const at::Tensor wide = terms.detach().to(at::kDouble);
  const double added = wide.abs().sum(0).max().item<double>();
  const double difference = (actual.to(at::kDouble) - wide.sum(0)).abs().max().item<double>();
  EXPECT_LE(difference, tolerance_of(c10::CppTypeToScalarType<T>::value) * added) << what;
}
at::Tensor wide(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).requires_grad_();
}

TEST(KernelSets, TheFirstOfThePathIsUsed) {
  EXPECT_EQ(&kernels<float>(), kernel_sets(isa()).front().floats);
  EXPECT_EQ(kernel_sets(Isa::None).size(), 1U);
  EXPECT_EQ(kernel_sets(Isa::None).back().name, "DEFAULT");
}

TEST(KernelSets, NumbersOf16BitsAreWidenedAndRoundedAsLibTorchDoes) {
  for_all([](const auto& table, int64_t width, auto type) {
    using T = decltype(type);
    const at::Tensor values = at::randn({width}, at::kFloat) * 100;
    at::Tensor rounded = at::empty_like(values, c10::CppTypeToScalarType<T>::value);
    at::Tensor widened = at::empty_like(values);
    table.from_floats(data<float>(values), mutable_data<T>(rounded), width);
    table.to_floats(data<T>(rounded), mutable_data<float>(widened), width);
    EXPECT_TRUE(rounded.equal(values.to(rounded.scalar_type())));
    EXPECT_TRUE(widened.equal(rounded.to(at::kFloat)));
  });
}

TEST(KernelSets, CausalSoftmax) {
  for_all([](const auto& table, int64_t columns, auto type) {
    using T = decltype(type);
    constexpr int64_t kHeads = 3;
    const at::Tensor slopes = at::randn({kHeads}, at::kFloat).abs();
    const int64_t queries = std::min<int64_t>(columns, 4);
    const int64_t first = columns - queries;
    const ScoreRows rows{columns, queries, first, kHeads, 0.3F, slopes.const_data_ptr<float>()};
    const at::Tensor scores = random<T>({kHeads * queries, columns});
    const at::Tensor grad = random<T>({kHeads * queries, columns});
    at::Tensor biased = scores.to(at::kDouble) * 0.3;
    for (int64_t r = 0; r < scores.size(0); ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t distance = first + r % queries - c;
        const double slope = slopes[r / queries].template item<double>();
        biased[r][c] += distance < 0 ? -1e30 : -slope * static_cast<double>(distance);
      }
    }
    const at::Tensor expected = at::softmax(biased, -1);
    at::Tensor actual = scores.clone();
    at::Tensor sums = at::zeros({scores.size(0)}, at::kFloat);
    table.causal_softmax(rows, mutable_data<T>(actual), mutable_data<float>(sums), 0,
                         scores.size(0));
    close<T>(actual, expected, "probabilities");
    expect_close(sums, biased.logsumexp(-1), 1e-5, "log of the sum");

    at::Tensor again = scores.clone();
    at::Tensor grad_scores = grad.clone();
    const at::Tensor dots = (expected * grad.to(at::kDouble)).sum(-1, /*keepdim=*/true);
    table.causal_softmax_backward(rows, mutable_data<T>(again), mutable_data<T>(grad_scores),
                                  data<float>(sums), 0, scores.size(0));
    close<T>(again, expected, "probabilities again");
    close<T>(grad_scores, expected * (grad.to(at::kDouble) - dots) * 0.3, "gradient of the scores");
  });
}

TEST(KernelSets, SumOfRows) {
  for_all([](const auto& table, int64_t width, auto type) {
    using T = decltype(type);
    const at::Tensor a = random<T>({kRows, width});
    at::Tensor sum = at::zeros({width}, at::kFloat);
    table.add_rows(data<T>(a), mutable_data<float>(sum), width, 0, kRows);
    close_sum<float>(sum, a, "sum of rows");
  });
}

TEST(KernelSets, LayerNorm) {
  for_all([](const auto& table, int64_t width, auto type) {
    using T = decltype(type);
    const at::Tensor input = random<T>({kRows, width}), weight = random<T>({width}),
                     bias = random<T>({width}), grad = random<T>({kRows, width});
    const at::Tensor x = wide(input), w = weight.to(at::kDouble), b = bias.to(at::kDouble);
    const at::Tensor centred = x - x.mean(-1, true);
    const at::Tensor normed = centred * (centred.square().mean(-1, true) + 0.1).rsqrt();
    const at::Tensor expected = normed * w + b;
    torch::autograd::backward({expected}, {grad.to(at::kDouble)});
    at::Tensor output = at::empty_like(input), grad_input = at::empty_like(input);
    at::Tensor statistics = at::zeros({kRows, 2}, at::kFloat);
    at::Tensor grad_weight = at::zeros({width}, at::kFloat), grad_bias = grad_weight.clone();
    table.layer_norm({data<T>(input), nullptr, nullptr}, data<T>(weight), data<T>(bias), 0.1F,
                     mutable_data<T>(output), mutable_data<float>(statistics), width, 0, kRows);
    table.layer_norm_backward(data<T>(grad), nullptr, data<T>(input), data<T>(weight),
                              data<float>(statistics), mutable_data<T>(grad_input),
                              mutable_data<float>(grad_weight), mutable_data<float>(grad_bias),
                              width, 0, kRows);
    close<T>(output, expected, "value");
    if (width > 1) {
      close<T>(grad_input, x.grad(), "gradient of the input");
      close_sum<T>(grad_weight, grad * normed, "gradient of the weight");
    }
    close_sum<T>(grad_bias, grad, "gradient of the bias");
  });
}

void check_rms_norm(RmsGain gain) {
  for_all([gain](const auto& table, int64_t width, auto type) {
    using T = decltype(type);
    const at::Tensor input = random<T>({kRows, width}), residual = random<T>({kRows, width}),
                     weight = random<T>({width}), grad = random<T>({kRows, width}),
                     grad_sum = random<T>({kRows, width});
    const at::Tensor rounded = input + residual;
    const at::Tensor x = wide(rounded);
    const at::Tensor w = weight.to(at::kDouble) + (gain == RmsGain::OnePlus ? 1 : 0);
    const at::Tensor normed = x * (x.square().mean(-1, true) + 0.1).rsqrt();
    const at::Tensor expected = normed * w;
    torch::autograd::backward({expected, x}, {grad.to(at::kDouble), grad_sum.to(at::kDouble)});
    at::Tensor output = at::empty_like(input), sum = at::empty_like(input),
               grad_input = at::empty_like(input);
    at::Tensor inverse_rms = at::zeros({kRows}, at::kFloat);
    at::Tensor grad_weight = at::zeros({width}, at::kFloat);
    table.rms_norm(gain, {data<T>(input), data<T>(residual), mutable_data<T>(sum)}, data<T>(weight),
                   0.1F, mutable_data<T>(output), mutable_data<float>(inverse_rms), width, 0,
                   kRows);
    table.rms_norm_backward(gain, data<T>(grad), data<T>(grad_sum), data<T>(sum), data<T>(weight),
                            data<float>(inverse_rms), mutable_data<T>(grad_input),
                            mutable_data<float>(grad_weight), width, 0, kRows);
    EXPECT_TRUE(sum.equal(rounded));
    close<T>(output, expected, "value");
    close<T>(grad_input, x.grad(), "gradient of the sum");
    close_sum<T>(grad_weight, grad * normed, "gradient of the weight");
  });
}

TEST(KernelSets, RmsNormOfASum) {
  for (const RmsGain gain : {RmsGain::Rounded, RmsGain::Wide, RmsGain::OnePlus}) {
    check_rms_norm(gain);
  }
}

TEST(KernelSets, BiasGelu) {
  for_all([](const auto& table, int64_t width, auto type) {
    using T = decltype(type);
    const at::Tensor input = random<T>({kRows, width}), bias = random<T>({width}),
                     grad = random<T>({kRows, width});
    const at::Tensor x = wide(input);
    const at::Tensor z = x + bias.to(at::kDouble);
    const at::Tensor expected =
        z * 0.5 * (1 + at::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z.pow(3))));
    torch::autograd::backward({expected}, {grad.to(at::kDouble)});
    at::Tensor output = at::empty_like(input), grad_input = at::empty_like(input);
    at::Tensor grad_bias = at::zeros({width}, at::kFloat);
    table.bias_gelu(data<T>(input), data<T>(bias), mutable_data<T>(output), width, 0, kRows);
    table.bias_gelu_backward(data<T>(grad), data<T>(input), data<T>(bias),
                             mutable_data<T>(grad_input), mutable_data<float>(grad_bias), width, 0,
                             kRows);
    close<T>(output, expected, "value");
    close<T>(grad_input, x.grad(), "gradient of the input");
    close_sum<T>(grad_bias, x.grad(), "gradient of the bias");
  });
}

TEST(KernelSets, CrossEntropy) {
  for_all([](const auto& table, int64_t columns, auto type) {
    using T = decltype(type);
    const at::Tensor logits = random<T>({kRows, columns}) * 5;
    const at::Tensor targets = at::randint(columns, {kRows}, at::kLong);
    const at::Tensor x = wide(logits);
    const at::Tensor expected = -at::log_softmax(x, -1).gather(1, targets.unsqueeze(1)).squeeze(1);
    (expected.sum() * 0.7).backward();
    at::Tensor losses = at::zeros({kRows}, at::kFloat), sums = losses.clone();
    table.cross_entropy(data<T>(logits), data<int64_t>(targets), columns,
                        mutable_data<float>(losses), mutable_data<float>(sums), 0, kRows);
    expect_close(losses, expected, 1e-5, "loss");
    at::Tensor grad = logits.clone();
    table.cross_entropy_backward(mutable_data<T>(grad), data<int64_t>(targets), data<float>(sums),
                                 0.7F, columns, 0, kRows);
    if (columns > 1) {
      close<T>(grad, x.grad(), "gradient");
    }
  });
}

TEST(KernelSets, AnInfiniteLogitOrOneThatIsNoNumberShowsInTheLoss) {
  for (const KernelSet& set : kernel_sets(machine_isa())) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      at::Tensor logits = at::randn({1, 5'000}, at::kFloat);
      logits[0][4'321] = bad;
      const at::Tensor target = at::zeros({1}, at::kLong);
      float loss = 0, sum = 0;
      set.floats->cross_entropy(data<float>(logits), data<int64_t>(target), 5'000, &loss, &sum, 0,
                                1);
      EXPECT_FALSE(std::isfinite(loss)) << set.name << ", " << bad;
    }
  }
}

// The first block of a row, and all of it.
TEST(KernelSets, MaskedLogitsAreLeftOutOfTheLoss) {
  constexpr int64_t kColumns = 5'000, kTarget = 4'500;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const KernelSet& set : kernel_sets(machine_isa())) {
    at::Tensor logits = at::randn({2, kColumns}, at::kFloat);
    logits[0].narrow(0, 0, 4'100).fill_(-infinity);
    logits[1].fill_(-infinity);
    const at::Tensor targets = at::full({2}, kTarget, at::kLong), sums = at::zeros({2}, at::kFloat);
    at::Tensor losses = at::zeros({2}, at::kFloat);
    set.floats->cross_entropy(data<float>(logits), data<int64_t>(targets), kColumns,
                              mutable_data<float>(losses), mutable_data<float>(sums), 0, 2);
    const double expected = at::logsumexp(logits[0].to(at::kDouble), 0).item<double>();
    EXPECT_NEAR(sums[0].item<double>(), expected, 1e-4) << set.name;
    EXPECT_NEAR(losses[0].item<double>(), expected - logits[0][kTarget].item<double>(), 1e-4);
    EXPECT_EQ(sums[1].item<float>(), -infinity) << set.name;
  }
}

TEST(KernelSets, AScoreThatIsNoNumberShowsInItsRowAndInNoOther) {
  for_all([](const auto& table, int64_t columns, auto type) {
    using T = decltype(type);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const ScoreRows rows{columns, 1, columns - 1, 2, 0.3F, nullptr};
      at::Tensor scores = random<T>({2, columns}), grad = random<T>({2, columns});
      scores[0][columns / 2] = bad;
      at::Tensor probabilities = scores.clone(), sums = at::zeros({2}, at::kFloat);
      table.causal_softmax(rows, mutable_data<T>(probabilities), mutable_data<float>(sums), 0, 2);
      EXPECT_TRUE(probabilities[0].isnan().all().template item<bool>()) << bad;
      EXPECT_TRUE(probabilities[1].isfinite().all().template item<bool>()) << bad;
      table.causal_softmax_backward(rows, mutable_data<T>(scores), mutable_data<T>(grad),
                                    data<float>(sums), 0, 2);
      EXPECT_TRUE(grad[0].isnan().all().template item<bool>()) << bad;
      EXPECT_TRUE(grad[1].isfinite().all().template item<bool>()) << bad;
    }
  });
}

TEST(KernelSets, ALogitThatIsNoNumberShowsInTheGradient) {
  for_all([](const auto& table, int64_t columns, auto type) {
    using T = decltype(type);
    at::Tensor logits = random<T>({1, columns}), sums = at::zeros({1}, at::kFloat);
    logits[0][columns / 2] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor target = at::zeros({1}, at::kLong);
    float loss = 0;
    table.cross_entropy(data<T>(logits), data<int64_t>(target), columns, &loss,
                        mutable_data<float>(sums), 0, 1);
    table.cross_entropy_backward(mutable_data<T>(logits), data<int64_t>(target), data<float>(sums),
                                 1.0F, columns, 0, 1);
    EXPECT_TRUE(logits.isnan().all().template item<bool>());
  });
}

}  // namespace
}  // namespace sherd::ops::cpu
