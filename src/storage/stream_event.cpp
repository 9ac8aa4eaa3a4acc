#include "storage/stream_event.h"

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

}  // namespace sherd::detail
