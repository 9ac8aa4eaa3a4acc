#pragma once
// Copies values from the host to the model's device.

#include <ATen/core/Tensor.h>

namespace sherd {

/// Returns the tensor on `device`, or the tensor itself if it is there. A copy from the host to a
/// GPU uses pinned memory and the order of the current stream; the host does not wait. LibTorch
/// copies a tensor that requires a gradient. Throws Error(Usage) in a micro-batch that is captured
/// (MicroBatchGraphs). PyTorch: `tensor.pin_memory().to(device, non_blocking=True)`.
[[nodiscard]] at::Tensor to_device(const at::Tensor& tensor, c10::Device device);

}  // namespace sherd
