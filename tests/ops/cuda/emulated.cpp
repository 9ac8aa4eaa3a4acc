// The back end for GPUs over the emulator: its tensors lie in CPU memory, a launch plays the
// kernel.

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/device.h"
#include "ops/plain/plain_backend.h"
#include "tests/ops/cuda/tested.h"

namespace sherd::ops::cuda {

StreamHandle current_stream(c10::Device /*device*/) {
  return nullptr;
}

// That of emulated_flash_attention.cpp.
bool has_flash_attention(c10::Device /*device*/) {
  return true;
}

// LibTorch has such a product on GPUs alone.
void mm_of_16_bits(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  plain::plain_backend().mm(out, a, b);
}

namespace test {

const Backend& tested_backend() {
  static const Backend backend = cuda_backend(plain::plain_backend());
  return backend;
}

c10::Device tested_device() {
  return c10::kCPU;
}

}  // namespace test
}  // namespace sherd::ops::cuda
