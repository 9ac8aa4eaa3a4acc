#include "launch/pipes.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sherd/error.h"

namespace sherd::launch {
namespace {

constexpr std::size_t kMostAtOnce_bytes = 1 << 20;  // more than a pipe holds, and an end to a flood

[[noreturn]] void throw_no_pipe() {
  throw Error(ExitCode::Unavailable, std::string("cannot make a pipe to a rank: ") +
                                         std::strerror(errno) +
                                         "; raise the limit on open files (ulimit -n)");
}

}  // namespace

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw_no_pipe();
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::pair<FileDescriptor, FileDescriptor> make_socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw_no_pipe();
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

void set_non_blocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

Bytes read_available(int fd) {
  Bytes bytes;
  std::array<char, 16384> buffer{};
  while (bytes.data.size() < kMostAtOnce_bytes) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count > 0) {
      bytes.data.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      bytes.at_end = count == 0 || errno != EAGAIN;
      break;
    }
  }
  return bytes;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace sherd::launch
