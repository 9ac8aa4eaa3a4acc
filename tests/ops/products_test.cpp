// Products of 16 bits in fp32 by blocks, against fp64: every layout, sizes around a block.

#include "ops/cpu/products.h"

#include <algorithm>

#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "ops/cpu/onednn_products.h"
#include "tests/ops/parity.h"
#include "tests/ops/with_isa.h"

namespace sherd::ops::cpu {
namespace {

struct Sizes {
  int64_t m, k, n;
};
// The longest dimension in each place, above a block of it and not; none; one.
constexpr Sizes kSizes[] = {{3, 5, 7},     {1, 1, 1},      {40, 33, 700},  {700, 40, 33},
                            {33, 700, 40}, {300, 2100, 9}, {2100, 300, 9}, {9, 300, 2100},
                            {0, 5, 7},     {5, 0, 7},      {5, 7, 0}};

// [rows, columns], laid out by rows, by columns, or with gaps.
at::Tensor laid_out(const at::Tensor& values, int layout) {
  if (layout == 0) {
    return values.contiguous();
  }
  if (layout == 1) {
    return values.t().contiguous().t();
  }
  at::Tensor gaps = at::empty({values.size(0) + 1, values.size(1) * 2 + 3}, values.options());
  const at::Tensor place = gaps.slice(0, 1).slice(1, 3, 3 + values.size(1) * 2, 2);
  place.copy_(values);
  return place;
}

class ProductsTest : public testing::TestWithParam<c10::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, ProductsTest, testing::Values(at::kBFloat16, at::kHalf),
                         dtype_name);

TEST_P(ProductsTest, InFloatsAreExactUpToOneRounding) {
  const WithIsa path(Isa::None);
  for (const auto& [m, k, n] : kSizes) {
    const at::Tensor a = at::randn({m, k}, at::kDouble).to(GetParam());
    const at::Tensor b = at::randn({k, n}, at::kDouble).to(GetParam());
    const at::Tensor bias = at::randn({n}, at::kDouble).to(GetParam());
    const at::Tensor exact = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
    for (int layout = 0; layout < 27; ++layout) {
      SCOPED_TRACE(testing::Message() << m << " " << k << " " << n << ", layout " << layout);
      const at::Tensor left = laid_out(a, layout % 3), right = laid_out(b, layout / 3 % 3);
      at::Tensor out = laid_out(at::empty({m, n}, a.options()), layout / 9);
      mm(out, left, right);
      const double rounding = GetParam() == at::kHalf ? 6e-4 : 5e-3;
      expect_close(out, exact, rounding, "product");
      addmm(out, bias, left, right);
      expect_close(out, exact + bias.to(at::kDouble), rounding, "product and bias");
      at::Tensor wide = laid_out(at::empty({m, n}, at::kFloat), layout / 9);
      mm(wide, left, right);
      expect_close(wide, exact, 1e-5, "product in fp32");
    }
  }
}

// By LibTorch's product or by oneDNN's, as rows, layout and processor have it.
TEST(Products, OfFloatsAgreeWithDoublesInEveryLayout) {
  constexpr Sizes kFloatSizes[] = {{1, 5, 7},      {63, 40, 33}, {64, 40, 33},
                                   {200, 130, 70}, {70, 1, 90},  {90, 70, 1},
                                   {0, 5, 7},      {80, 0, 7},   {80, 7, 0}};
  for (const auto& [m, k, n] : kFloatSizes) {
    const at::Tensor a = at::randn({m, k}), b = at::randn({k, n}), bias = at::randn({n});
    const at::Tensor exact = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
    for (int layout = 0; layout < 27; ++layout) {
      SCOPED_TRACE(testing::Message() << m << " " << k << " " << n << ", layout " << layout);
      const at::Tensor left = laid_out(a, layout % 3), right = laid_out(b, layout / 3 % 3);
      at::Tensor out = laid_out(at::empty({m, n}), layout / 9);
      mm(out, left, right);
      expect_close(out, exact, 1e-5, "product");
      addmm(out, bias, left, right);
      expect_close(out, exact + bias.to(at::kDouble), 1e-5, "product and bias");
    }
  }
}

TEST(Products, OfBatchesAgreeWithDoublesInEveryLayout) {
  const at::Tensor a = at::randn({3, 70, 40}), b = at::randn({3, 40, 33});
  const at::Tensor exact = at::bmm(a.to(at::kDouble), b.to(at::kDouble));
  const auto by_columns = [](const at::Tensor& all) {
    return all.transpose(1, 2).contiguous().transpose(1, 2);
  };
  const auto of_a_longer_one = [](const at::Tensor& all) {
    return at::cat({all, at::ones({3, 5, all.size(2)})}, 1).narrow(1, 0, all.size(1));
  };
  for (const at::Tensor& left : {a, by_columns(a), of_a_longer_one(a)}) {
    for (const at::Tensor& right : {b, by_columns(b), of_a_longer_one(b)}) {
      at::Tensor out = at::empty({3, 70, 33});
      bmm(out, left, right);
      expect_close(out, exact, 1e-5, "batches");
    }
  }
}

// Above no processor's instructions, and for Intel's never: there MKL has its own.
TEST(Products, OfFloatsAreOneDnnsOnlyWithAvx512) {
  for (int i = 0; i <= static_cast<int>(machine_isa()); ++i) {
    const WithIsa path(static_cast<Isa>(i));
    EXPECT_EQ(onednn_multiplies_floats(isa()), std::min(isa(), allowed_isa()) >= Isa::Avx512);
    EXPECT_TRUE(!onednn_is_faster() || std::min(isa(), allowed_isa()) >= Isa::Avx512);
  }
}

TEST(Products, OfAPathWithTheInstructionsAreLibTorchs) {
  EXPECT_TRUE(multiplies(at::kFloat, Isa::None));
  EXPECT_FALSE(multiplies(at::kBFloat16, Isa::Avx512));
  EXPECT_TRUE(multiplies(at::kBFloat16, Isa::Avx512Bf16));
  EXPECT_TRUE(multiplies(at::kBFloat16, Isa::Amx));
  EXPECT_FALSE(multiplies(at::kHalf, Isa::Amx));
}

}  // namespace
}  // namespace sherd::ops::cpu
