#include "sherd/to_device.h"

namespace sherd {

at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  const bool crosses = tensor.is_cpu() && !device.is_cpu() && !device.is_meta();
  if (!crosses || tensor.requires_grad() || tensor.numel() == 0) {
    return tensor.to(device);
  }
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace sherd
