#pragma once
// Values on their way from where a model is computed to the host.

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace sherd {

/// The values that a tensor has when its device comes to where this was made. From a GPU they go
/// to pinned memory in the order of the current stream, and the host waits for nothing until it
/// reads them. PyTorch: `tensor.to("cpu", non_blocking=True)` and an event behind it.
class HostCopy {
 public:
  /// A detached copy of `tensor`; not collective. Throws Error(OutOfMemory).
  explicit HostCopy(const at::Tensor& tensor);
  /// The values on the host, of the shape and dtype of the tensor, when they have come.
  [[nodiscard]] const at::Tensor& wait() const;

 private:
  at::Tensor on_host_;
  std::optional<c10::Event> come_;  ///< none where they were on the host
};

}  // namespace sherd
