#pragma once
// Arithmetic on flat shards of fp32 and bf16: loops on CPUs, registered kernels on other devices.
// On the meta device, whose tensors have no values, it does nothing.

#include <ATen/core/Tensor.h>

#include "kernels/kernels.h"

namespace sherd::detail {

/// Registers `kernels`, which must stay where they are, for shards on devices of this kind; null:
/// none. Call it before a model is sharded: without kernels, any arithmetic on such a device throws
/// Error(Unavailable).
void set_device_kernels(c10::DeviceType type, const kernels::DeviceKernels* kernels);

namespace shard_math {

/// out (+)= scale × sources[0], += scale × sources[1], … in fp32. `out` fp32 or bf16 [n], rounded
/// once; sources [n] of one dtype, fp32, bf16 or fp16. Returns the sum of squares of `out` on CPUs,
/// else NaN.
double sum_in_rank_order(const at::Tensor& out, bool accumulate, float scale,
                         at::TensorList sources);

void scale_in_place(const at::Tensor& values, float factor);
/// By fp32 [] on the same device, without waiting.
void scale_in_place(const at::Tensor& values, const at::Tensor& factor);

/// Of fp32 or bf16 values, where they are, without waiting: double [].
[[nodiscard]] at::Tensor sum_of_squares_on_device(const at::Tensor& values);
/// The factor of clip_grad_norm(), fp32 [], of the sum of squares over all ranks, double []; not on
/// CPUs.
[[nodiscard]] at::Tensor clip_factor_on_device(const at::Tensor& squares, double max_norm);
/// Σ |x|^p for any p, or max |x| where p is infinity, where the values are: double [].
[[nodiscard]] at::Tensor sum_of_powers(const at::Tensor& values, double p);

/// Rounds fp32 values into another dtype.
void round_into(const at::Tensor& values, const at::Tensor& out);

/// fp32 values into halves, bf16 and int16, all [n]: see [Note: Masters in two halves].
void split(const at::Tensor& values, const at::Tensor& travelling, const at::Tensor& low);
/// A new fp32 tensor [n] of them.
[[nodiscard]] at::Tensor join(const at::Tensor& travelling, const at::Tensor& low);

/// Fills fp32 [n] with the random elements [first, first + n) of a tensor, both multiples of
/// RandomWords::kPerBlock. A device's bits equal a CPU's, but for one unit in the last place of at
/// most one element in 10⁶.
void fill_random(const at::Tensor& out, int64_t first, const kernels::RandomWords& words,
                 const kernels::Distribution& distribution);

/// What one AdamW step reads and writes, all of one length; see kernels::AdamWShards.
struct AdamWTensors {
  at::Tensor master;          ///< fp32; undefined where it lies in halves or is bf16 alone
  at::Tensor exp_avg;         ///< fp32 or bf16
  at::Tensor exp_avg_sq;      ///< of the same dtype
  at::Tensor gradient;        ///< fp32 or bf16
  at::Tensor travelling;      ///< undefined where the master travels
  int64_t first_element = 0;  ///< number of the first one in its parameter
  at::Tensor low = {};        ///< int16, of masters that are split; else undefined
  /// fp32 [] on the device, used instead of AdamWStep::grad_scale. NaN: nothing is written.
  at::Tensor grad_scale = {};
};
void adamw(const AdamWTensors& tensors, const kernels::AdamWStep& step);

}  // namespace shard_math

}  // namespace sherd::detail
