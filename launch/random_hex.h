#pragma once
// What cannot be guessed.

#include <cstddef>
#include <string>

namespace sherd::launch {

/// `bytes` random bytes of the system's, as hexadecimal digits. Throws `Error` (Unavailable) where
/// it has none.
[[nodiscard]] std::string random_hex(std::size_t bytes);

}  // namespace sherd::launch
