#include "launch/random_hex.h"

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include <sys/random.h>

#include "sherd/error.h"

namespace sherd::launch {

std::string random_hex(std::size_t bytes) {
  std::vector<unsigned char> random(bytes);
  if (::getrandom(random.data(), bytes, 0) != static_cast<ssize_t>(bytes)) {
    throw Error(ExitCode::Unavailable,
                std::string("the system has no random bytes: ") + std::strerror(errno));
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : random) {
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

}  // namespace sherd::launch
