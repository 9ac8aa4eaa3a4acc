#include "ops/linear_cross_entropy.h"

#include <set>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "ops/cpu/products.h"
#include "tests/ops/parity.h"
#include "tests/ops/with_isa.h"
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

// The ends of what there is here: products of bf16 by blocks of fp32, and in the form of this run's
// path.
std::set<cpu::Isa> isas_here() {
  return {cpu::Isa::None, cpu::isa()};
}

struct Head {
  int64_t width;
  int64_t vocabulary;
  c10::ScalarType dtype;
};

// The most bytes that forward holds at once.
int64_t peak_bytes(const Head& head, int64_t rows, int64_t chunk) {
  const Tensors in = random_leaves({{rows, head.width}, {head.vocabulary, head.width}}, head.dtype);
  const at::Tensor targets = at::randint(9, {rows}, at::kLong);
  const test::AllocatedBytes bytes;
  const at::Tensor loss = linear_cross_entropy(in[0], in[1], targets, chunk);
  return bytes.peak();
}

TEST(LinearCrossEntropy, TakesTheWayThatNeedsLessMemory) {
  constexpr int64_t kHidden = 64;
  constexpr int64_t kChunk = 32;
  constexpr int64_t kMost = kChunk + 3 * kHidden;  // rows of one chunk
  for (const cpu::Isa isa : isas_here()) {
    const WithIsa path(isa);
    SCOPED_TRACE(cpu::name_of(isa));
    // Beside products by blocks of fp32, and what oneDNN takes for its own.
    const Head head{kHidden, 32768, at::kBFloat16};
    const int64_t row_bytes = head.vocabulary * 2;  // of logits
    EXPECT_LE(peak_bytes(head, kMost, kChunk), peak_bytes(head, kMost + 1, kChunk));
    EXPECT_LT(peak_bytes(head, 2 * kMost, kChunk), 2 * kMost * row_bytes);
  }
}

// Where one chunk becomes several, both need the same but for some rows of logits.
TEST(LinearCrossEntropy, CountsAllThatEitherWayNeeds) {
  constexpr int64_t kChunk = 32;
  for (const cpu::Isa isa : isas_here()) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const WithIsa path(isa);
      SCOPED_TRACE(cpu::name_of(isa) + " " + c10::toString(dtype));
      const Head head{128, 8192, dtype};
      const auto chosen = [&](int64_t rows) { return peak_bytes(head, rows, kChunk); };
      const auto one_chunk = [&](int64_t rows) { return peak_bytes(head, rows, rows); };
      int64_t one = kChunk, several = 512;  // rows that are one chunk, and that are several
      ASSERT_NE(chosen(several), one_chunk(several));
      while (several - one > 1) {
        const int64_t middle = (one + several) / 2;
        (chosen(middle) == one_chunk(middle) ? one : several) = middle;
      }
      const double row_bytes =
          static_cast<double>(head.vocabulary) * static_cast<double>(c10::elementSize(dtype));
      EXPECT_NEAR(static_cast<double>(chosen(several)), static_cast<double>(one_chunk(several)),
                  16 * row_bytes)
          << several << " rows";
    }
  }
}

// With a divisor, a soft cap and weights of rows, alone and together, in one chunk and in several.
TEST_P(LinearCrossEntropyTest, AgreesWithMappedLogitsAndRowWeights) {
  const int64_t rows = 150;
  const at::Tensor targets = at::randint(kVocabulary, {rows}, at::kLong);
  const at::Tensor weights = at::randn({rows}, at::kFloat).square();
  const LogitMap maps[] = {{1.7, {}}, {1, 2.5}, {0.6, 3}};
  for (const LogitMap& map : maps) {
    for (const int64_t chunk : {256, 40}) {
      for (const at::Tensor& of_rows : {at::Tensor(), weights}) {
        expect_parity(
            [&](const Tensors& in) {
              return linear_cross_entropy(in[0], in[1], targets, chunk, map, of_rows);
            },
            [&](const Tensors& in) {
              const at::Tensor losses = at::cross_entropy_loss(
                  mapped(at::linear(in[0], in[1]), map), targets, {}, at::Reduction::None);
              return (of_rows.defined() ? losses * of_rows : losses).sum();
            },
            random_leaves({{rows, kWidth}, {kVocabulary, kWidth}}, GetParam()));
      }
    }
  }
}

// Of each row, in chunks, without a graph.
TEST_P(LinearCrossEntropyTest, OfRowsAgrees) {
  const Tensors in = random_leaves({{43, kWidth}, {kVocabulary, kWidth}}, GetParam());
  const at::Tensor targets = at::randint(kVocabulary, {43}, at::kLong);
  for (const LogitMap& map : {LogitMap{}, LogitMap{1.7, 2.5}}) {
    const at::Tensor logits = mapped(at::linear(in[0], in[1]), map).to(at::kDouble).detach();
    const at::Tensor expected = at::cross_entropy_loss(logits, targets, {}, at::Reduction::None);
    for (const int64_t chunk : {5, 64}) {
      const at::Tensor losses = linear_cross_entropy_of_rows(in[0], in[1], targets, chunk, map);
      EXPECT_FALSE(losses.requires_grad());
      EXPECT_LE((losses - expected).abs().max().item<double>(),
                GetParam() == at::kFloat || GetParam() == at::kDouble ? 1e-5 : 0.1);
    }
  }
  EXPECT_EQ(
      linear_cross_entropy_of_rows(in[0].slice(0, 0, 0), in[1], targets.slice(0, 0, 0)).numel(), 0);
}

// No more than one chunk of logits is there at a time.
TEST(LinearCrossEntropy, OfRowsHoldsOneChunk) {
  const Tensors in = random_leaves({{256, 16}, {4096, 16}}, at::kFloat);
  const at::Tensor targets = at::randint(9, {256}, at::kLong);
  const test::AllocatedBytes bytes;
  static_cast<void>(linear_cross_entropy_of_rows(in[0], in[1], targets, 16));
  EXPECT_LT(bytes.peak(), 3 * 16 * 4096 * 4);
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
