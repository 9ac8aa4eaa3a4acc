// ALiBi's columns beside slope × position in fp64, their kernels played in several orders of
// threads.

#include "ops/cuda/kernels/alibi.cuh"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "ops/cuda/launches.h"
#include "tests/ops/cuda/played.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr int kAlibiThreads = 32;
constexpr int64_t kAlibiBlocks = 3, kWidth = 16, kWide = kWidth + 8;

template <class T>
class AlibiColumns : public testing::Test {
 protected:
  static WiderHeads<T> of(const at::Tensor& heads, const at::Tensor& out) {
    return {data<T>(heads),
            data<T>(out),
            heads.stride(0),
            heads.stride(1),
            heads.size(0),
            static_cast<int>(heads.size(1)),
            static_cast<int>(heads.size(2))};
  }
  // The second of two that lie side by side in memory.
  static at::Tensor heads_of(int64_t tokens, int64_t heads) {
    return random<T>({tokens, heads, 2, kWidth}, 1).select(2, 1);
  }
  // What it computes for the documents' keys; their heads come through as they are.
  static at::Tensor keys(const at::Tensor& heads, const at::Tensor& offsets) {
    const at::Tensor out = unwritten<T>({heads.size(0), heads.size(1), kWide});
    const auto kernel = [&] {
      alibi_keys<T, kAlibiThreads>(of(heads, out), offsets.const_data_ptr<int32_t>(),
                                   static_cast<int>(offsets.numel()) - 1);
    };
    play(kAlibiBlocks, kAlibiThreads, kernel, {out});
    EXPECT_TRUE(at::equal(out.narrow(2, 0, kWidth), heads));
    return out.slice(2, kWidth).to(at::kDouble);
  }
  static at::Tensor queries(const at::Tensor& heads, const at::Tensor& slopes, double scale) {
    const at::Tensor out = unwritten<T>({heads.size(0), heads.size(1), kWide});
    const auto kernel = [&] {
      alibi_queries<T, kAlibiThreads>(of(heads, out), slopes.const_data_ptr<float>(),
                                      static_cast<float>(kFineFactor / scale));
    };
    play(kAlibiBlocks, kAlibiThreads, kernel, {out});
    EXPECT_TRUE(at::equal(out.narrow(2, 0, kWidth), heads));
    return out.slice(2, kWidth).to(at::kDouble);
  }
};

using AlibiDtypes = testing::Types<c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(AlibiColumns, AlibiDtypes);

// Slopes of 6 heads as BLOOM has them, the least and the steepest of any number; at the last
// positions of the longest document there may be.
TYPED_TEST(AlibiColumns, HoldSlopeTimesPositionToTheLastBitOfFp32) {
  const at::Tensor slopes = at::tensor(
      {0.25F, 0.0625F, 0.015625F, 0.00390625F, 0.70710677F, 0.49999997F, 0.9576033F}, at::kFloat);
  const double scale = 1 / std::sqrt(72.0);
  const at::Tensor query = this->queries(this->heads_of(1, 7), slopes, scale)[0];  // [N, 8]
  constexpr int kLong = static_cast<int>(kLongestWithAlibi);
  const at::Tensor offsets = at::tensor({0, 3, kLong + 3}, at::kInt);
  const at::Tensor key = this->keys(this->heads_of(kLong + 3, 1), offsets).select(1, 0);  // [T, 8]
  const at::Tensor bias = query.mm(key.t()) * scale;
  const at::Tensor positions =
      at::cat({at::arange(3, at::kDouble), at::arange(kLong, at::kDouble)});
  const at::Tensor expected = slopes.to(at::kDouble).unsqueeze(1) * positions;
  EXPECT_TRUE(((bias - expected).abs() <= expected * std::exp2(-22)).all().template item<bool>());
}

TYPED_TEST(AlibiColumns, BeginAnewInEachDocument) {
  const at::Tensor offsets = at::tensor({0, 1, 4, 200, 201, 203}, at::kInt);
  const at::Tensor key = this->keys(this->heads_of(203, 2), offsets);
  for (int64_t document = 0; document < 5; ++document) {
    const int64_t begin = offsets[document].template item<int64_t>();
    for (int64_t token = begin; token < offsets[document + 1].template item<int64_t>(); ++token) {
      const at::Tensor columns = key[token][1];
      for (int64_t part = 0; part < kSlopeParts; ++part) {
        const double position = 16 * (columns[2 * part].template item<double>() +
                                      columns[2 * part + 1].template item<double>());
        EXPECT_EQ(position, static_cast<double>(token - begin));
      }
      EXPECT_EQ(columns.slice(0, 2 * kSlopeParts).abs().sum().template item<double>(), 0);
    }
  }
}

TYPED_TEST(AlibiColumns, AreZeroWhereNothingIsToBeAdded) {
  using T = TypeParam;
  const at::Tensor heads = this->heads_of(5, 3), out = unwritten<T>({5, 3, kWide});
  play(kAlibiBlocks, kAlibiThreads, [&] { wider_heads<T, kAlibiThreads>(this->of(heads, out)); },
       {out});
  EXPECT_TRUE(at::equal(out.narrow(2, 0, kWidth), heads));
  EXPECT_TRUE(at::equal(out.slice(2, kWidth), at::zeros({5, 3, 8}, out.options())));
}

}  // namespace
}  // namespace sherd::ops::cuda
