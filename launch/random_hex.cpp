#include "launch/random_hex.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include <sys/random.h>

#include "files/hex.h"
#include "sherd/error.h"

namespace sherd::launch {

std::string random_hex(std::size_t bytes) {
  std::vector<unsigned char> random(bytes);
  if (::getrandom(random.data(), bytes, 0) != static_cast<ssize_t>(bytes)) {
    throw Error(ExitCode::Unavailable,
                std::string("the system has no random bytes: ") + std::strerror(errno));
  }
  return files::hex_of(random.data(), random.size());
}

}  // namespace sherd::launch
