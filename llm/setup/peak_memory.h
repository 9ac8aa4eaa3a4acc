#pragma once
// Memory that the process uses, and that is available.

#include <cstdint>

#include <c10/core/Device.h>

#include "sherd/world.h"

namespace llm::setup {

/// The largest resident size so far (VmHWM of /proc/self/status), in bytes; 0 where
/// unavailable.
[[nodiscard]] std::int64_t peak_resident_bytes();

/// What is resident of a process, in bytes; 0 where unavailable.
struct ResidentMemory {
  std::int64_t own_bytes = 0;  ///< shared memory is divided by all that map it
  /// Pages of files, such as the program, its libraries and data that are mapped. The system takes
  /// them away and reads them again as it likes.
  std::int64_t file_bytes = 0;

  [[nodiscard]] std::int64_t bytes() const { return own_bytes + file_bytes; }
};

/// Of this process now. `local_ranks` processes of this host map the same files: their pages are
/// divided by them, whoever else maps them, so that other programs change nothing. Takes
/// milliseconds a GiB.
[[nodiscard]] ResidentMemory resident_memory(int local_ranks);

/// peak_resident_bytes(), or of a GPU the most that LibTorch's allocator has held there.
[[nodiscard]] std::int64_t peak_bytes_on(c10::Device device);

/// resident_memory() of a rank, or of a GPU what LibTorch's allocator holds there.
[[nodiscard]] std::int64_t held_bytes_of(const sherd::World& rank);

/// Memory that `local_ranks` processes of this host may still take together: what the system has to
/// give, swap included, and no more than control group and address space allow. 0 if
/// unknown.
[[nodiscard]] std::int64_t available_memory_bytes(int local_ranks);

}  // namespace llm::setup
