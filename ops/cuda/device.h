#pragma once
// What the back end asks of a GPU beside kernels of its own. On a GPU it is device.cpp; where
// kernels are played on a processor, that brings its own.

#include <ATen/core/Tensor.h>

#include "ops/cuda/launches.h"

namespace sherd::ops::cuda {

/// What work on this device is queued on, for the calling thread.
[[nodiscard]] StreamHandle current_stream(c10::Device device);

/// The device's compute capability × 10: 90 for 9.0.
[[nodiscard]] int compute_capability(c10::Device device);

/// Whether what this thread launches on the device is captured in a graph.
[[nodiscard]] bool is_capturing(c10::Device device);

/// Reads a scalar bool on the device. Blocks until it is there; device.sync_debug_mode does not
/// count it.
[[nodiscard]] bool read_flag(const at::Tensor& flag);

/// out [m, n] in fp32 = a [m, k] · b [k, n] of 16 bits, unrounded.
void mm_of_16_bits(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

}  // namespace sherd::ops::cuda
