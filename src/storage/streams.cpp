#include "storage/streams.h"

#include <exception>

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace sherd::detail {

std::optional<c10::Event> reached_by_current_stream(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) {
    return std::nullopt;
  }
  std::optional<c10::Event> event(device.type());
  event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

CopyStreams::CopyStreams(c10::Device device)
    : device_(device),
      to_device_(side_stream(device, StreamPriority::Normal)),
      to_host_(side_stream(device, StreamPriority::Normal)) {}

CopyStreams::~CopyStreams() {
  try {
    order(to_device_, current());
    order(to_host_, current());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is of no use
  }
}

c10::Stream CopyStreams::current() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

void CopyStreams::order(const c10::Stream& earlier, const c10::Stream& later) {
  reached(earlier).block(later);
}

c10::Event CopyStreams::reached(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

void CopyStreams::copy(const c10::Stream& stream, const at::Tensor& from, const at::Tensor& to) {
  const at::NoGradGuard no_grad;
  const c10::StreamGuard guard(stream);
  at::Tensor target = to;
  target.copy_(from, /*non_blocking=*/true);
}

void CopyStreams::synchronize() const {
  to_device_.synchronize();
  to_host_.synchronize();
}

}  // namespace sherd::detail
