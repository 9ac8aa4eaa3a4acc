#pragma once
// Number of threads of a rank.

#include <cstdint>

namespace app {

/// Sets the number of compute threads, for the calling thread. Throws sherd::Error(Unavailable) if
/// the system does not allow this process that many.
void use_threads(std::int64_t count);

}  // namespace app
