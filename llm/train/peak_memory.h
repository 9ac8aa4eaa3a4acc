#pragma once
// What memory the process takes.

#include <cstdint>

namespace llm::train {

/// The largest resident size so far (VmHWM of /proc/self/status), in bytes; 0 where that is not to
/// be had.
[[nodiscard]] std::int64_t peak_resident_bytes();

/// What it takes now, a page that n processes share counted as 1/n (Pss of
/// /proc/self/smaps_rollup), in bytes; 0 where that is not to be had. Takes milliseconds a GiB.
[[nodiscard]] std::int64_t proportional_resident_bytes();

}  // namespace llm::train
