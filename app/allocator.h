#pragma once
// LibTorch's memory on CPUs, for the program.

#include <cstddef>

namespace app {

/// Sets up memory for the whole process. malloc is tcmalloc (by linking), which keeps freed memory
/// for the next step; LibTorch asks for huge pages (THP_MEM_ALLOC_ENABLE). oneDNN and LibTorch
/// cache fewer compiled products than their default of 1,024 (ONEDNN_PRIMITIVE_CACHE_CAPACITY,
/// LRU_CACHE_CAPACITY). The environment may override these three variables. If the system has no
/// memory for a CPU tensor, a c10::Error reports "not enough memory", the bytes, and the remedy;
/// otherwise the kernel would promise the memory and later kill the process. Call once per process,
/// before the first tensor. Only a program may call this, never the library: it affects all of
/// LibTorch.
void install_allocator();

/// Bytes that large tensors hold of the system's memory, in use or kept.
[[nodiscard]] std::size_t large_blocks_bytes();

/// Returns the memory that is kept for the next step to the system.
void give_back_free_memory();

}  // namespace app
