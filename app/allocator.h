#pragma once
// LibTorch's memory on CPUs, for the program.

#include <cstddef>

namespace app {

/// Sets up memory for the whole process, whose malloc is tcmalloc (by linking): tcmalloc keeps what
/// is freed for the next step, and LibTorch asks for huge pages (THP_MEM_ALLOC_ENABLE). oneDNN and
/// LibTorch each keep fewer compiled products than their 1,024 (ONEDNN_PRIMITIVE_CACHE_CAPACITY,
/// LRU_CACHE_CAPACITY). The environment may set these three variables otherwise. From now on a CPU
/// tensor for which the system has no memory is refused with a c10::Error that says "not enough
/// memory", the bytes, and what to do; the kernel would promise the memory and later kill the
/// process that uses it. Call once per process, before any tensor. Only a program may choose this,
/// never the library: it holds for all of LibTorch.
void install_allocator();

/// What large tensors have taken from the system, in use or kept.
[[nodiscard]] std::size_t large_blocks_bytes();

/// Gives the system what is kept for the next step.
void give_back_free_memory();

}  // namespace app
