#pragma once
// Where a device's current stream is.

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace sherd::detail {

/// Comes when the device has done what was given to its current stream so far; none for devices
/// without streams.
[[nodiscard]] std::optional<c10::Event> reached_by_current_stream(c10::Device device);

}  // namespace sherd::detail
