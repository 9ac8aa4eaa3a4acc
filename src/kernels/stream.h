#pragma once
// Stores that bypass the caches.

#include <cstdint>

namespace sherd::kernels {

/// Copies to memory that nobody reads soon: the lines of `to` are not read first, and nothing else
/// leaves the caches for them. Where the processor has no such stores, a plain copy. Other threads
/// see the bytes after end_of_stream() and whatever orders plain stores.
void stream(const void* from, void* to, int64_t bytes);
void end_of_stream();

}  // namespace sherd::kernels
