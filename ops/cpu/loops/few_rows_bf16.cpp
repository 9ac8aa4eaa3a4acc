// Products of few rows of bf16, with the instruction that multiplies pairs of bf16 and adds to
// fp32: the set AVX512_BF16, which has the loops of AVX512 otherwise. Numbers below 2^-126 count as
// 0.

#include <algorithm>
#include <cstring>

#include <immintrin.h>

#include "ops/cpu/kernels.h"

namespace sherd::ops::cpu {

namespace AVX512 {
KernelSet kernel_set();
}  // namespace AVX512

namespace {

using c10::BFloat16;

constexpr int64_t kLanes = 32;   // bf16 of a register
constexpr int64_t kRows = 4;     // of a block
constexpr int64_t kOutputs = 4;  // a block's sums fit the registers, and their totals one

using Sums = __m512[kRows * kOutputs];  // of row r and output o: [r × kOutputs + o]

inline __m512bh load(const BFloat16* from, __mmask32 lanes) {
  const __m512i bits = _mm512_maskz_loadu_epi16(lanes, from);
  return reinterpret_cast<const __m512bh&>(bits);
}

template <int64_t rows>
[[gnu::always_inline]] inline void add_products(const BFloat16* const (&inputs)[kRows],
                                                const BFloat16* const (&weights)[kOutputs],
                                                int64_t i, __mmask32 lanes, Sums& sums) {
  __m512bh of_outputs[kOutputs];
#pragma GCC unroll 4
  for (int64_t o = 0; o < kOutputs; ++o) {
    of_outputs[o] = load(weights[o] + i, lanes);
  }
#pragma GCC unroll 4
  for (int64_t r = 0; r < rows; ++r) {
    const __m512bh x = load(inputs[r] + i, lanes);
#pragma GCC unroll 4
    for (int64_t o = 0; o < kOutputs; ++o) {
      sums[r * kOutputs + o] = _mm512_dpbf16_ps(sums[r * kOutputs + o], x, of_outputs[o]);
    }
  }
}

// Lane k: the total of sums[k]. Every total adds its lanes in the same order, so that a row's
// result does not depend on its place in the block.
[[gnu::always_inline]] inline __m512 totals_of(const Sums& sums) {
  __m512 by_four[4];  // of each quarter of a register, the totals of four sums
#pragma GCC unroll 4
  for (int64_t k = 0; k < 4; ++k) {
    const __m512* of = sums + 4 * k;
    const __m512 first = _mm512_add_ps(_mm512_unpacklo_ps(of[0], of[1]),  //
                                       _mm512_unpackhi_ps(of[0], of[1]));
    const __m512 second =
        _mm512_add_ps(_mm512_unpacklo_ps(of[2], of[3]), _mm512_unpackhi_ps(of[2], of[3]));
    const __m512d a = _mm512_castps_pd(first), b = _mm512_castps_pd(second);
    by_four[k] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                               _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  constexpr int kEven = 0x88, kOdd = 0xDD;  // quarters
  const auto halves = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, kEven), _mm512_shuffle_f32x4(a, b, kOdd));
  };
  return halves(halves(by_four[0], by_four[1]), halves(by_four[2], by_four[3]));
}

// The bias of `count` outputs, for each row of a block.
inline __m512 bias_of(const FewRows<BFloat16>& of, int64_t output, int64_t count) {
  float bias[kOutputs] = {};
  if (of.bias != nullptr) {
    std::copy_n(of.bias + output, count, bias);
  }
  return _mm512_broadcast_f32x4(_mm_loadu_ps(bias));
}

// Of `rows` rows from `row` on and the outputs from `output` to `end`, at most kOutputs. Fetches
// the weights of an output that comes later, which would else be waited for.
template <int64_t rows>
void block(const FewRows<BFloat16>& of, int64_t row, int64_t output, int64_t end,
           const BFloat16* later, BFloat16* out) {
  const BFloat16* inputs[kRows];
  const BFloat16* weights[kOutputs];
  for (int64_t r = 0; r < rows; ++r) {
    inputs[r] = of.input + (row + r) * of.inner;
  }
  for (int64_t o = 0; o < kOutputs; ++o) {
    weights[o] = of.weight + std::min(output + o, end - 1) * of.inner;
  }
  Sums sums;  // in registers, which the compiler sees of unrolled loops only
#pragma GCC unroll 16
  for (__m512& sum : sums) {
    sum = _mm512_setzero_ps();
  }
  int64_t i = 0;
  for (; i + kLanes <= of.inner; i += kLanes) {
    __builtin_prefetch(later + i);
    add_products<rows>(inputs, weights, i, ~__mmask32{0}, sums);
  }
  if (i < of.inner) {
    add_products<rows>(inputs, weights, i, (__mmask32{1} << (of.inner - i)) - 1, sums);
  }
  const int64_t valid = std::min(kOutputs, end - output);
  const __m256bh rounded =
      _mm512_cvtneps_pbh(_mm512_add_ps(totals_of(sums), bias_of(of, output, valid)));
  alignas(32) BFloat16 results[kRows * kOutputs];
  std::memcpy(results, &rounded, sizeof results);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(results + r * kOutputs, valid, out + (row + r) * of.outputs + output);
  }
}

void few_rows_product(const FewRows<BFloat16>& of, BFloat16* out, int64_t begin, int64_t end) {
  for (int64_t output = begin; output < end; output += kOutputs) {
    int64_t row = 0;
    const auto later = [&] {  // each block of rows fetches another output of the next ones
      return of.weight + (output + kOutputs + row / kRows % kOutputs) * of.inner;
    };
    for (; row + kRows <= of.rows; row += kRows) {
      block<kRows>(of, row, output, end, later(), out);
    }
    for (; row < of.rows; ++row) {
      block<1>(of, row, output, end, later(), out);
    }
  }
}

}  // namespace

namespace AVX512_BF16 {

KernelSet kernel_set() {
  static const Kernels<BFloat16> bfloats = [] {
    Kernels<BFloat16> table = *AVX512::kernel_set().bfloats;
    table.few_rows_product = &few_rows_product;
    return table;
  }();
  const KernelSet rest = AVX512::kernel_set();
  return {"AVX512_BF16", rest.floats, &bfloats, rest.halves};
}

}  // namespace AVX512_BF16
}  // namespace sherd::ops::cpu
