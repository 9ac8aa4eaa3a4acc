#include "ops/cuda/device.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDAStream.h>

namespace sherd::ops::cuda {

StreamHandle current_stream(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

bool has_flash_attention(c10::Device device) {
  constexpr int kAmpere = 8;
  return at::cuda::getDeviceProperties(device.index())->major >= kAmpere;
}

void mm_of_16_bits(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  at::mm_out(out, a, b, at::kFloat);
}

}  // namespace sherd::ops::cuda
