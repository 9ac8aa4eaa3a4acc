#include "ops/linear_cross_entropy.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "ops/cpu/isa.h"
#include "tests/ops/parity.h"
#include "tests/support/allocated_bytes.h"

namespace sherd::ops {
namespace {

constexpr int64_t kWidth = 7;
constexpr int64_t kVocabulary = 29;

class LinearCrossEntropyTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, LinearCrossEntropyTest, dtypes(), dtype_name);

at::Tensor plain(const Tensors& in, const at::Tensor& targets) {
  return at::cross_entropy_loss(at::linear(in[0], in[1]), targets, {}, at::Reduction::Sum);
}

// The upstream gradient of expect_parity() is not 1.
void check(int64_t rows, int64_t chunk, c10::ScalarType dtype, int64_t vocabulary = kVocabulary) {
  SCOPED_TRACE(testing::Message() << rows << " rows in chunks of " << chunk);
  const at::Tensor targets = at::randint(vocabulary, {rows}, at::kLong);
  expect_parity(
      [&](const Tensors& in) { return linear_cross_entropy(in[0], in[1], targets, chunk); },
      [&](const Tensors& in) { return plain(in, targets); },
      random_leaves({{rows, kWidth}, {vocabulary, kWidth}}, dtype));
}

TEST_P(LinearCrossEntropyTest, AgreesInOneChunk) {
  check(1, 8, GetParam());
  check(8, 8, GetParam());
}

// A vocabulary of eight times the width and more has products of its own (ops/cpu/products.h).
TEST_P(LinearCrossEntropyTest, AgreesForAWideVocabularyAndManyRows) {
  for (const int64_t rows : {256, 257, 384, 385, 511, 800}) {
    check(rows, 1024, GetParam(), 8 * kWidth);
  }
  check(900, 400, GetParam(), 8 * kWidth + 3);
}

// Up to 14 (fp32) or 21 rows (bf16) more than a chunk are one.
TEST_P(LinearCrossEntropyTest, AgreesInSeveralChunks) {
  check(30, 8, GetParam());
  check(32, 8, GetParam());
  check(43, 5, GetParam());
}

TEST(LinearCrossEntropy, TakesTheWayThatNeedsLessMemory) {
  if (cpu::isa() < cpu::Isa::Avx512Bf16) {
    GTEST_SKIP()
        << "on the path " << cpu::isa_name()
        << " products of bf16 take blocks of fp32 that are larger than this test's tensors";
  }
  constexpr int64_t kRowBytes = 512 * 2;  // of logits
  constexpr int64_t kHidden = 64;
  constexpr int64_t kChunk = 32;
  constexpr int64_t kMost = kChunk + 3 * kHidden;  // rows of one chunk
  const auto peak_bytes = [&](int64_t rows) {
    const Tensors in = random_leaves({{rows, kHidden}, {512, kHidden}}, at::kBFloat16);
    const at::Tensor targets = at::randint(9, {rows}, at::kLong);
    const test::AllocatedBytes bytes;
    const at::Tensor loss = linear_cross_entropy(in[0], in[1], targets, kChunk);
    return bytes.peak();
  };
  EXPECT_LE(peak_bytes(kMost), peak_bytes(kMost + 1));
  EXPECT_LT(peak_bytes(2 * kMost), 2 * kMost * kRowBytes);
}

TEST_P(LinearCrossEntropyTest, IsZeroWithZeroGradientsWithoutRows) {
  Tensors in = random_leaves({{0, kWidth}, {kVocabulary, kWidth}}, GetParam());
  const at::Tensor loss = linear_cross_entropy(in[0], in[1], at::randint(9, {0}, at::kLong));
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  ASSERT_TRUE(in[1].grad().defined());
  EXPECT_EQ(in[1].grad().abs().max().item<double>(), 0);
  EXPECT_EQ(in[0].grad().numel(), 0);
}

TEST(LinearCrossEntropy, LossOfBf16IsFp32) {
  const Tensors in = random_leaves({{3, kWidth}, {kVocabulary, kWidth}}, at::kBFloat16);
  EXPECT_EQ(linear_cross_entropy(in[0], in[1], at::randint(9, {3}, at::kLong)).scalar_type(),
            at::kFloat);
}

TEST(LinearCrossEntropy, FrozenHeadGetsNoGradient) {
  for (const int64_t chunk : {2, 8}) {  // without that gradient, several chunks always need less
    Tensors in = random_leaves({{5, kWidth}, {kVocabulary, kWidth}}, at::kFloat);
    in[1].requires_grad_(false);
    linear_cross_entropy(in[0], in[1], at::randint(9, {5}, at::kLong), chunk).backward();
    EXPECT_TRUE(in[0].grad().defined());
    EXPECT_FALSE(in[1].grad().defined());
  }
}

TEST(LinearCrossEntropy, ComputesNoGradientThatNobodyWants) {
  Tensors in = random_leaves({{64, kWidth}, {kVocabulary, kWidth}}, at::kFloat);
  in[0].requires_grad_(false);
  const at::Tensor loss = linear_cross_entropy(in[0], in[1], at::randint(9, {64}, at::kLong));
  const test::AllocatedBytes bytes;
  loss.backward();
  EXPECT_LT(bytes.peak(), static_cast<int64_t>(in[1].nbytes() + in[0].nbytes()));
}

TEST(LinearCrossEntropy, CanBeDifferentiatedTwiceOver) {
  const Tensors in = random_leaves({{5, kWidth}, {kVocabulary, kWidth}}, at::kFloat);
  const at::Tensor loss = linear_cross_entropy(in[0], in[1], at::randint(9, {5}, at::kLong));
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = in[1].grad().clone();
  loss.backward();
  EXPECT_TRUE(in[1].grad().equal(once * 2));
}

TEST(LinearCrossEntropy, RefusesATargetOutsideTheVocabulary) {
  const Tensors in = random_leaves({{1, kWidth}, {kVocabulary, kWidth}}, at::kFloat);
  EXPECT_THROW((void)linear_cross_entropy(in[0], in[1], at::full({1}, kVocabulary, at::kLong)),
               std::exception);
}

}  // namespace
}  // namespace sherd::ops
