#include "files/system_text.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <sys/stat.h>

#include "sherd/error.h"

namespace sherd::files {

std::string errno_text(int error) {
  return std::generic_category().message(error);
}

void throw_errno(ExitCode code, const std::string& what, int error) {
  const std::string message = what + ": " + errno_text(error);
  if (error == ENOSPC || error == EDQUOT) {
    throw NoRoom(code, message);
  }
  throw Error(code, message);
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

std::string where_it_begins(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::path(path).is_absolute()
             ? ""
             : "; relative paths begin here, in " + std::filesystem::current_path(ignored).string();
}

}  // namespace sherd::files
