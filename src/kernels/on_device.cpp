#include "kernels/on_device.h"

#include <array>
#include <atomic>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace sherd::detail {

namespace {

std::atomic<const kernels::DeviceKernels*>& kernels_for(c10::DeviceType type) {
  static std::array<std::atomic<const kernels::DeviceKernels*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES>
      all{};
  return all.at(static_cast<size_t>(type));
}

const kernels::DeviceKernels* kernels_for(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  const bool can_be = dtype == at::kFloat || dtype == at::kBFloat16;
  return can_be ? kernels_for(tensor.device().type()).load() : nullptr;
}

}  // namespace

void set_device_kernels(c10::DeviceType type, const kernels::DeviceKernels* kernels) {
  kernels_for(type) = kernels;
}

bool has_device_kernels(c10::DeviceType type) {
  return kernels_for(type) != nullptr;
}

OnDevice::OnDevice(const at::Tensor& tensor) : kernels_(kernels_for(tensor)) {
  if (kernels_ != nullptr) {
    guard_.reset_device(tensor.device());
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    stream_ = device.getStream(tensor.device()).native_handle();
  }
}

}  // namespace sherd::detail
