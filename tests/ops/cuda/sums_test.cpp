// Sums over rows of ops/cuda, by columns and by ids, beside fp64 and played in several orders of
// threads.

#include <stdexcept>

#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "ops/cuda/kernels/column_sums.cuh"
#include "ops/cuda/kernels/embedding.cuh"
#include "tests/ops/cuda/played.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr int kSumThreads = 96;

template <class T>
class Sums : public testing::Test {
 protected:
  static constexpr int64_t kParts = 3, kSumRows = 25;
  static constexpr int64_t kSumColumns = kTile<Pack<T>::kCount> + 3 * Pack<T>::kCount;
  static constexpr int64_t kBlocks = kParts * 2;
  const at::Tensor matrix = random<T>({kSumRows, kSumColumns}, 1);
  const at::Tensor parts = unwritten<float>({kParts, kSumColumns});

  [[nodiscard]] std::function<void()> kernel() const {
    return [this] {
      column_sums<T, kSumThreads>(data<T>(matrix), data<float>(parts), kSumRows, kSumColumns);
    };
  }
};

using SumDtypes = testing::Types<float, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(Sums, SumDtypes);

TYPED_TEST(Sums, OfPartsAreThoseOfFp64) {
  play(this->kBlocks, kSumThreads, this->kernel(), {this->parts});
  const at::Tensor wide = this->matrix.to(at::kDouble);
  int64_t begin = 0;
  for (int64_t part = 0; part < this->kParts; ++part) {
    const int64_t end = (part + 1) * this->kSumRows / this->kParts;
    expect_near<float>(this->parts[part], wide.slice(0, begin, end).sum(0), "part");
    begin = end;
  }
}

TYPED_TEST(Sums, NeedTheirBarrier) {
  const auto barriers = play(this->kBlocks, kSumThreads, this->kernel(), {this->parts});
  ASSERT_EQ(barriers.size(), 1U);
  const at::Tensor expected = this->parts.clone();
  emulator::play(this->kBlocks, kSumThreads, this->kernel(),
                 {.seed = 1, .without = *barriers.begin()});
  EXPECT_FALSE(at::equal(this->parts, expected));
}

TYPED_TEST(Sums, OfIdsAreThosesOfThePlainBackEndBitByBit) {
  using T = TypeParam;
  constexpr int64_t kWidth = kSumThreads + 5, kVocabulary = 6;
  const at::Tensor ids = at::tensor({3, 0, 3, 5, 3, 0, 3, 2, 3}, at::kLong);
  const at::Tensor gradient = random<T>({ids.numel(), kWidth}, 2);
  const auto [sorted, order] = at::sort(ids, /*stable=*/std::optional<bool>(true), /*dim=*/0);
  for (const bool is_empty : {true, false}) {
    const at::Tensor before = random<T>({kVocabulary, kWidth}, 3) * (is_empty ? 0 : 1);
    at::Tensor expected = before.clone();
    reference().add_embedding_gradient(expected, ids, gradient);
    for (const uint32_t seed : {1U, 2U, 3U}) {
      const at::Tensor found = before.clone();
      emulator::play(ids.numel() * 2, kSumThreads,
                     [&, ids_of = sorted, order_of = order] {
                       add_embedding_rows<T, kSumThreads>(
                           {data<int64_t>(ids_of), data<int64_t>(order_of), data<T>(gradient),
                            data<T>(found), ids.numel(), kWidth});
                     },
                     {.seed = seed});
      EXPECT_TRUE(at::equal(found, expected)) << seed;
    }
  }
}

}  // namespace
}  // namespace sherd::ops::cuda
