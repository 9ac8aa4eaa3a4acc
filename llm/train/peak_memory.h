#pragma once
// The process's own peak.

#include <cstdint>

namespace llm::train {

/// The largest resident size so far (VmHWM of /proc/self/status), in bytes; 0 where that is not to
/// be had.
[[nodiscard]] std::int64_t peak_resident_bytes();

}  // namespace llm::train
