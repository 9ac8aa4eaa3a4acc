#pragma once
// Memory that the process uses, and that is available.

#include <cstdint>

#include <c10/core/Device.h>

#include "sherd/world.h"

namespace llm::setup {

/// The largest resident size so far (VmHWM of /proc/self/status), in bytes; 0 where
/// unavailable.
[[nodiscard]] std::int64_t peak_resident_bytes();

/// Resident size now, shared pages divided, in bytes; 0 where unavailable. Pages of files, which
/// `local_ranks` processes of this host map, are divided by them, whoever else maps them: what
/// other programs do changes nothing. Takes milliseconds a GiB.
[[nodiscard]] std::int64_t proportional_resident_bytes(int local_ranks);

/// peak_resident_bytes(), or of a GPU the most that LibTorch's allocator has held there.
[[nodiscard]] std::int64_t peak_bytes_on(c10::Device device);

/// proportional_resident_bytes() of a rank, or of a GPU what LibTorch's allocator holds there.
[[nodiscard]] std::int64_t held_bytes_of(const sherd::World& rank);

/// Memory that `local_ranks` processes of this host may still take together: what the system has to
/// give, swap included, and no more than control group and address space allow. 0 if
/// unknown.
[[nodiscard]] std::int64_t available_memory_bytes(int local_ranks);

}  // namespace llm::setup
