#pragma once
// LibTorch's memory on CPUs, for the program.

#include <cstddef>

namespace app {

/// The program's malloc is tcmalloc, by linking. This tells it to keep what is freed for the next
/// step; LibTorch to ask for huge pages (THP_MEM_ALLOC_ENABLE) and oneDNN to keep fewer compiled
/// products than its 1,024 (ONEDNN_PRIMITIVE_CACHE_CAPACITY), unless the environment says
/// otherwise; and from now on a CPU tensor for which the system has no memory is refused, with a
/// c10::Error that says "not enough memory", the bytes, and what to do. The kernel would promise
/// it, and end the process that uses it. Once a process, before any tensor; a program's choice,
/// never the library's, since it holds for all of LibTorch.
void install_allocator();

/// What large tensors have taken from the system, in use or kept.
[[nodiscard]] std::size_t large_blocks_bytes();

/// Gives the system what is kept for the next step.
void give_back_free_memory();

}  // namespace app
