#include "files/system_text.h"

#include <system_error>

#include <sys/stat.h>

namespace sherd::files {

std::string errno_text(int error) {
  return std::generic_category().message(error);
}

std::string kind_text(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return "a regular file";
    case S_IFDIR:
      return "a folder";
    case S_IFIFO:
      return "a pipe";
    case S_IFSOCK:
      return "a socket";
    case S_IFLNK:
      return "a link";
    default:
      return "a device";
  }
}

}  // namespace sherd::files
