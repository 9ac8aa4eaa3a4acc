#pragma once
// Random texts.

#include <cstddef>
#include <string>

namespace sherd::launch {

/// `bytes` random bytes from the system, as hexadecimal digits. Throws `Error` (Unavailable) if
/// there are none.
[[nodiscard]] std::string random_hex(std::size_t bytes);

}  // namespace sherd::launch
