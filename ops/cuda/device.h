#pragma once
// What the back end asks of a GPU beside kernels of its own. On a GPU it is device.cpp; where
// kernels are played on a processor, that brings its own.

#include <ATen/core/Tensor.h>

#include "ops/cuda/launches.h"

namespace sherd::ops::cuda {

/// What work on this device is queued on, for the calling thread.
[[nodiscard]] StreamHandle current_stream(c10::Device device);

/// Whether LibTorch's flash attention runs on this device: compute capability 8.0 and above.
[[nodiscard]] bool has_flash_attention(c10::Device device);

/// out [m, n] in fp32 = a [m, k] · b [k, n] of 16 bits, unrounded.
void mm_of_16_bits(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

}  // namespace sherd::ops::cuda
