#pragma once
// LibTorch's memory on CPUs, for the program: large blocks are kept and reused.

#include "app/memory_arena.h"

namespace app {

/// From now on LibTorch's CPU tensors of 256 KiB and more lie in a MemoryArena, on huge pages that
/// are used again: a step reuses those of the one before, and touches no new page. Smaller ones
/// come from LibTorch's own allocator. Once a process, before any tensor; a program's choice, never
/// the library's, since it holds for all of LibTorch. PyTorch: none; its CUDA caching allocator
/// does the same on GPUs, its expandable segments with one stretch of addresses.
void install_caching_allocator();

/// Whether SHERD_ALLOCATOR, given its value or null, leaves the choice to the program or asks for
/// the caching allocator; "system" leaves LibTorch's own, which takes every block from malloc.
/// Throws sherd::Error(Usage) for another word.
[[nodiscard]] bool wants_caching_allocator(const char* setting);

/// What the arena has done.
[[nodiscard]] ArenaCounts caching_allocator_counts();

}  // namespace app
