// Loaded into a program (LD_PRELOAD): the files of checkpoints take SLOW_DISK_SECONDS each to
// become durable, on the rank SLOW_DISK_RANK or on all. The first write of each file takes as long
// again.

#include <cstdlib>
#include <string>

#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_slow(int fd) {
  const std::string rank = variable("SLOW_DISK_RANK");
  if (variable("SLOW_DISK_SECONDS").empty() || (!rank.empty() && rank != variable("RANK"))) {
    return false;
  }
  struct stat status = {};
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
         ::readlink(link.c_str(), path, sizeof path - 1) > 0 &&
         std::string(path).find("/checkpoints/") != std::string::npos;
}

void be_slow(int fd) {
  if (is_slow(fd)) {
    ::usleep(static_cast<useconds_t>(1e6 * std::atof(variable("SLOW_DISK_SECONDS").c_str())));
  }
}

template <class Call>
Call original(Call /*own*/, const char* name) {
  return reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name));
}

ssize_t write_slowly(int fd, const void* data, size_t bytes, off_t offset) {
  if (offset == 0) {
    be_slow(fd);
  }
  return original(&::pwrite, "pwrite")(fd, data, bytes, offset);
}

}  // namespace

extern "C" {

int fsync(int fd) {
  be_slow(fd);
  return original(&::fsync, "fsync")(fd);
}

int fdatasync(int fd) {
  be_slow(fd);
  return original(&::fdatasync, "fdatasync")(fd);
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return write_slowly(fd, data, bytes, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  return write_slowly(fd, data, bytes, offset);
}
}
