#pragma once
// How many threads a rank computes with.

#include <cstdint>

namespace app {

/// Computes with `count` threads from now on, on the calling thread. Throws
/// sherd::Error(Unavailable) where the system does not let this process have so many.
void use_threads(std::int64_t count);

}  // namespace app
