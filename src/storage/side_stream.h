#pragma once
// Streams beside the one that computes.

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace sherd::detail {

enum class StreamPriority : bool { Normal, High };

/// One of the device's pool. PyTorch: `torch.Stream(device, priority=…)`.
[[nodiscard]] inline c10::Stream side_stream(c10::Device device, StreamPriority priority) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, priority == StreamPriority::High);
}

}  // namespace sherd::detail
