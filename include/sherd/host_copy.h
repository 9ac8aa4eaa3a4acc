#pragma once
// Asynchronous copies of values from the model's device to the host.

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace sherd {

/// A snapshot of a tensor's values at this point of its device's stream. From a GPU the values go
/// to pinned memory in the order of the current stream; the host waits only when it reads them.
/// PyTorch: `tensor.to("cpu", non_blocking=True)` with an event after it.
class HostCopy {
 public:
  /// Starts a detached copy of `tensor`. Not collective. Throws Error(OutOfMemory).
  explicit HostCopy(const at::Tensor& tensor);
  /// Blocks until the copy is complete and returns the values on the host, in the tensor's shape
  /// and dtype.
  [[nodiscard]] const at::Tensor& wait() const;

 private:
  at::Tensor on_host_;
  std::optional<c10::Event> come_;  ///< after the copy; unset for a tensor on the host
};

}  // namespace sherd
