#pragma once
// Whose kernels work on tensors that are not a processor's: those of a library that was loaded, or
// ATen's.

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/device_kernels.h"

namespace sherd::detail {

/// From now on `kernels` work on shards on devices of this kind; null: ATen's operators, as before
/// the first call. Whoever loads the library that holds them calls it, before a model is sharded;
/// they stay where they are. Throws nothing.
void set_device_kernels(c10::DeviceType type, const kernels::DeviceKernels* kernels);

/// Whether kernels work on shards on devices of this kind.
[[nodiscard]] bool has_device_kernels(c10::DeviceType type);

/// The kernels for a tensor in fp32 or bf16, if there are any, and the stream that they go into.
/// Its device is the thread's current one as long as this lives.
class OnDevice {
 public:
  explicit OnDevice(const at::Tensor& tensor);
  [[nodiscard]] explicit operator bool() const { return kernels_ != nullptr; }
  [[nodiscard]] const kernels::DeviceKernels* operator->() const { return kernels_; }
  [[nodiscard]] kernels::Stream stream() const { return stream_; }

 private:
  const kernels::DeviceKernels* kernels_;
  c10::OptionalDeviceGuard guard_;
  kernels::Stream stream_ = nullptr;
};

}  // namespace sherd::detail
