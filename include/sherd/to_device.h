#pragma once
// Values from the host to where a model is computed.

#include <ATen/core/Tensor.h>

namespace sherd {

/// The tensor on `device`; itself where it lies there. From the host to a GPU it goes through
/// pinned memory in the order of the current stream, and the host does not wait; but for one that
/// requires a gradient, which LibTorch copies. Throws Error(Usage) in a micro-batch that is
/// captured (MicroBatchGraphs). PyTorch: `tensor.pin_memory().to(device, non_blocking=True)`.
[[nodiscard]] at::Tensor to_device(const at::Tensor& tensor, c10::Device device);

}  // namespace sherd
