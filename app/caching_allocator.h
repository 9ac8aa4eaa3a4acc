#pragma once
// LibTorch's memory on CPUs, for the program: large blocks are kept and reused.

#include <cstdint>

namespace app {

/// What the allocator has done, for tests and reports.
struct CachingAllocatorCounts {
  std::int64_t mapped_bytes = 0;  ///< held from the system
  std::int64_t mappings = 0;      ///< ever asked of the system
};

/// From now on LibTorch's CPU tensors of 256 KiB and more lie in blocks on huge pages that are
/// returned to the system only when it runs out of memory: a step reuses the blocks of the one
/// before, and touches no new page. Smaller ones come from LibTorch's own allocator. Once a
/// process, before any tensor; a program's choice, never the library's, since it holds for all of
/// LibTorch. PyTorch: none; its CUDA caching allocator does the same on GPUs.
void install_caching_allocator();

/// Whether SHERD_ALLOCATOR, given its value or null, leaves the choice to the program or asks for
/// the caching allocator; "system" leaves LibTorch's own, which takes every block from malloc.
/// Throws sherd::Error(Usage) for another word.
[[nodiscard]] bool wants_caching_allocator(const char* setting);

[[nodiscard]] CachingAllocatorCounts caching_allocator_counts();

}  // namespace app
