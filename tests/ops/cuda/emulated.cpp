// The back end for GPUs over the emulator: its tensors lie in CPU memory, a launch plays the
// kernel.

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/device.h"
#include "ops/plain/plain_backend.h"
#include "tests/ops/cuda/emulated_gpu.h"
#include "tests/ops/cuda/tested.h"

namespace sherd::ops::cuda {

StreamHandle current_stream(c10::Device /*device*/) {
  return nullptr;
}

int compute_capability(c10::Device /*device*/) {
  return test::emulated_gpu().compute_capability;
}

bool is_capturing(c10::Device /*device*/) {
  return test::emulated_gpu().is_capturing;
}

bool read_flag(const at::Tensor& flag) {
  return flag.item<bool>();
}

// LibTorch has such a product on GPUs alone.
void mm_of_16_bits(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  plain::plain_backend().mm(out, a, b);
}

namespace test {

EmulatedGpu& emulated_gpu() {
  static EmulatedGpu gpu;
  return gpu;
}

const Backend& tested_backend() {
  static const Backend backend = cuda_backend(plain::plain_backend());
  return backend;
}

c10::Device tested_device() {
  return c10::kCPU;
}

}  // namespace test
}  // namespace sherd::ops::cuda
