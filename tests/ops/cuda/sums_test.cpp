// Sums over rows of ops/cuda, by columns and by ids, beside fp64 and played in several orders of
// threads.

#include <algorithm>
#include <functional>
#include <random>
#include <stdexcept>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
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

// Runs of one id that begin anywhere, within a part and longer than all of a block's parts.
at::Tensor ids_in_runs() {
  std::vector<int64_t> ids;
  const int64_t lengths[] = {1, 5, kEmbeddingPart, 1, 3 * kEmbeddingPart + 7, kEmbeddingPart + 1,
                             2};
  for (int64_t i = 0; i < 7; ++i) {
    ids.insert(ids.end(), static_cast<size_t>(lengths[i]), i % 4 == 3 ? 100 + i : i * 2);
  }
  std::mt19937 random(1);
  std::shuffle(ids.begin(), ids.end(), random);
  return at::tensor(ids, at::kLong);
}
constexpr int64_t kIdsInRuns = 128;  // that there might be

template <class T, class Out, int kCount>
void check_embedding(const at::Tensor& ids, int64_t width, const at::Tensor& before) {
  const at::Tensor gradient = random<T>({ids.numel(), width}, 2);
  const auto [sorted, order] =
      at::sort(ids.to(at::kInt), /*stable=*/std::optional<bool>(true), /*dim=*/0);
  at::Tensor expected = before.to(at::kDouble);
  reference().add_embedding_gradient(expected, ids, gradient.to(at::kDouble));
  constexpr int kWarps = kSumThreads / gpu::kWarp, kColumns = gpu::kWarp * kCount;
  const int64_t blocks = (ids.numel() + kWarps - 1) / kWarps * ((width + kColumns - 1) / kColumns);
  at::Tensor first;
  for (const uint32_t seed : {1U, 2U, 3U}) {
    const at::Tensor found = before.clone();
    const EmbeddingRows<T, Out> of{data<int32_t>(sorted), data<int64_t>(order), data<T>(gradient),
                                   data<Out>(found),      ids.numel(),          width};
    emulator::play(blocks, kSumThreads,
                   [of] { add_embedding_rows<T, Out, kCount, kSumThreads>(of); }, {.seed = seed});
    expect_near<Out>(found, expected, "gradient");
    first = seed == 1U ? found : first;
    EXPECT_TRUE(at::equal(found, first)) << "depends on the order of threads";
  }
}

TYPED_TEST(Sums, OfIdsAreThoseOfFp64) {
  using T = TypeParam;
  constexpr int kCount = Pack<T>::kCount;
  const at::Tensor ids = ids_in_runs();
  for (const bool is_empty : {true, false}) {
    const auto before = [&]<class Out>(Out /*type*/, int64_t width) {
      return random<Out>({kIdsInRuns, width}, 3) * (is_empty ? 0 : 1);
    };
    check_embedding<T, T, kCount>(ids, 40 * kCount, before(T(), 40 * kCount));
    check_embedding<T, float, kCount>(ids, 8 * kCount, before(float(), 8 * kCount));
    check_embedding<T, T, 1>(ids, 37, before(T(), 37));
    check_embedding<T, float, 1>(ids, 5, before(float(), 5));
  }
}

// Those of an id that is not in parts are added as the plain back end adds them.
TYPED_TEST(Sums, OfFewTokensOfAnIdHaveThePlainBackEndsBits) {
  using T = TypeParam;
  constexpr int64_t kWidth = 5 * 64, kVocabulary = 6;
  constexpr int kCount = Pack<T>::kCount;
  const at::Tensor ids = at::tensor({3, 0, 3, 5, 3, 0, 3, 2, 3}, at::kLong);
  const at::Tensor gradient = random<T>({ids.numel(), kWidth}, 2);
  const auto [sorted, order] =
      at::sort(ids.to(at::kInt), /*stable=*/std::optional<bool>(true), /*dim=*/0);
  const at::Tensor found = random<T>({kVocabulary, kWidth}, 3);
  at::Tensor expected = found.clone();
  reference().add_embedding_gradient(expected, ids, gradient);
  const EmbeddingRows<T, T> of{data<int32_t>(sorted), data<int64_t>(order), data<T>(gradient),
                               data<T>(found),        ids.numel(),          kWidth};
  emulator::play(3 * ((kWidth + 32 * kCount - 1) / (32 * kCount)), kSumThreads,
                 [of] { add_embedding_rows<T, T, kCount, kSumThreads>(of); });
  EXPECT_TRUE(at::equal(found, expected));
}

// What a kernel leaves in its outputs without one of its barriers, in some order of the threads.
bool shows_without(const emulator::Barrier& barrier, int64_t blocks, const at::Tensor& output,
                   const at::Tensor& before, const at::Tensor& expected,
                   const std::function<void()>& kernel) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    output.copy_(before);
    try {
      emulator::play(blocks, kSumThreads, kernel, {.seed = seed, .without = barrier});
    } catch (const std::logic_error&) {
      return true;
    }
    if (!at::equal(output, expected)) {
      return true;
    }
  }
  return false;
}

TEST(EmbeddingSums, NeedEachBarrier) {
  constexpr int64_t kWidth = 64;
  const at::Tensor ids = at::ones({5 * 3 * kEmbeddingPart}, at::kInt);
  ids[0] = 0;
  const at::Tensor order = at::arange(ids.numel(), at::kLong);
  const at::Tensor gradient = random<float>({ids.numel(), kWidth}, 2);
  const at::Tensor before = at::zeros({2, kWidth}), found = before.clone();
  const EmbeddingRows<float, float> of{data<int32_t>(ids),    data<int64_t>(order),
                                       data<float>(gradient), data<float>(found),
                                       ids.numel(),           kWidth};
  const auto kernel = [of] { add_embedding_rows<float, float, 4, kSumThreads>(of); };
  const auto barriers = emulator::play(1, kSumThreads, kernel);
  EXPECT_EQ(barriers.size(), 3U);
  const at::Tensor expected = found.clone();
  for (const emulator::Barrier& barrier : barriers) {
    EXPECT_TRUE(shows_without(barrier, 1, found, before, expected, kernel))
        << barrier.file << ":" << barrier.line;
  }
}

// In the midst of others: without a barrier, places are outside.
at::Tensor none_of(int64_t count, c10::ScalarType dtype) {
  constexpr int64_t kAround = 512;
  return at::full({count + 2 * kAround}, -1, dtype).narrow(0, kAround, count);
}

TEST(SortedIds, AreThoseOfAStableSort) {
  for (const int64_t count : {1, 31, 64, 300}) {
    const at::Tensor ids = at::randint(9, {count}, at::kLong);
    ids[0] = 128255;
    const at::Tensor sorted = none_of(count, at::kInt), order = none_of(count, at::kLong);
    const auto kernel = [=] {
      sorted_ids<kSumThreads>(data<int64_t>(ids), count, data<int32_t>(sorted),
                              data<int64_t>(order));
    };
    const int64_t blocks = (count + 31) / 32;
    const auto barriers = emulator::play(blocks, kSumThreads, kernel);
    const auto [expected, places] = at::sort(ids, /*stable=*/std::optional<bool>(true), /*dim=*/0);
    EXPECT_TRUE(at::equal(sorted, expected.to(at::kInt)));
    EXPECT_TRUE(at::equal(order, places));
    EXPECT_EQ(barriers.size(), 3U);
    for (const emulator::Barrier& barrier : barriers) {
      EXPECT_TRUE(count < 300 ||
                  shows_without(barrier, blocks, order, at::full_like(order, -1), places, kernel))
          << barrier.file << ":" << barrier.line;
    }
  }
}

}  // namespace
}  // namespace sherd::ops::cuda
