#include "ops/cuda/device.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

namespace sherd::ops::cuda {

StreamHandle current_stream(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

int compute_capability(c10::Device device) {
  const cudaDeviceProp* const properties = at::cuda::getDeviceProperties(device.index());
  return properties->major * 10 + properties->minor;
}

bool is_capturing(c10::Device device) {
  const c10::DeviceGuard guard(device);
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

bool read_flag(const at::Tensor& flag) {
  const c10::DeviceGuard guard(flag.device());
  const at::Tensor read =
      at::empty({}, at::TensorOptions(at::kBool).device(at::kCPU).pinned_memory(true));
  read.copy_(flag, /*non_blocking=*/true);
  at::cuda::CUDAEvent copied;
  copied.record(c10::cuda::getCurrentCUDAStream(flag.device().index()));
  copied.synchronize();
  return read.item<bool>();
}

void mm_of_16_bits(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  at::mm_out(out, a, b, at::kFloat);
}

}  // namespace sherd::ops::cuda
