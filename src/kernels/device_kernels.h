#pragma once
// The loops over flat shards as kernels of another device; free of LibTorch and of the device.

#include <cstdint>
#include <span>
#include <variant>

#include "kernels/kernels.h"
#include "kernels/random.h"

namespace sherd::kernels {

/// Work that a device does one after the other: CUDA's cudaStream_t.
using Stream = void*;

/// fp16 as its bits.
struct Float16 {
  uint16_t bits = 0;
};

/// Where sums of squares go, on the device.
struct Squares {
  static constexpr int64_t kParts = 8192;
  double* sum = nullptr;    ///< one; null: not wanted
  double* parts = nullptr;  ///< [kParts], to work in
};

/// What kernels.h does, on a device: each is put into a stream and not waited for. Every pointer
/// but those to the lists themselves is the device's; counts and starts are any, and fastest where
/// all arrays begin at a multiple of 16 bytes. Bits are those of kernels.h, but for sums of
/// squares, which are added in double, in an order of their own that the count decides, and for
/// NaN, which stays NaN.
struct DeviceKernels {
  /// In fp32, bf16 or fp16.
  using Sources = std::variant<std::span<const float* const>, std::span<const uint16_t* const>,
                               std::span<const Float16* const>>;
  /// Sources a call, at most; any number of them where each lies as far behind the one before.
  int64_t most_sources = 0;
  /// `squares`: of the result, without another pass over it.
  void (*sum_in_rank_order)(Values out, bool accumulate, float scale, const Sources& sources,
                            int64_t numel, const Squares& squares, Stream stream) = nullptr;
  void (*sum_of_squares)(ConstValues values, int64_t numel, const Squares& squares,
                         Stream stream) = nullptr;
  /// *factor = max_norm ÷ (√squares + 1e-6) where that is below 1, else 1: what clip_grad_norm()
  /// multiplies gradients by.
  void (*clip_factor)(const double* squares, double max_norm, float* factor,
                      Stream stream) = nullptr;
  void (*scale_in_place)(Values values, float factor, int64_t numel, Stream stream) = nullptr;
  void (*to_bfloat16)(const float* values, uint16_t* out, int64_t numel, Stream stream) = nullptr;
  void (*split)(const float* values, SplitMaster out, int64_t numel, Stream stream) = nullptr;
  void (*join)(SplitMaster master, float* out, int64_t numel, Stream stream) = nullptr;
  /// `grad_scale`: one float, in the place of the step's; NaN: nothing is written; null: that of
  /// the step.
  void (*adamw)(const AdamWShards& shards, int64_t numel, const AdamWStep& step,
                const float* grad_scale, Stream stream) = nullptr;
  /// `out` begins at a multiple of 16 bytes. Logarithm, sine and cosine are the device's: they
  /// differ from the CPU's in the last places of a double.
  void (*fill_random)(float* out, uint64_t first_block, int64_t blocks, const RandomWords& words,
                      const Distribution& distribution, Stream stream) = nullptr;
};

}  // namespace sherd::kernels
