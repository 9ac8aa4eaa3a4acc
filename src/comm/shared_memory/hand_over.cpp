#include "comm/shared_memory/hand_over.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "launch/random_hex.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

using launch::FileDescriptor;

constexpr size_t kMostFiles = 8;
constexpr size_t kRandomBytes = 16;  // of a name

[[noreturn]] void hand_over_failed(const std::string& what) {
  throw Error(ExitCode::Unavailable, what + ": " + std::strerror(errno) + ".");
}

FileDescriptor unix_socket() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) {
    hand_over_failed("cannot open a Unix socket");
  }
  return fd;
}

// A path that begins with a zero byte is a name and no file.
struct AbstractAddress {
  explicit AbstractAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t size = 0;
};

void wait_readable(int fd, const std::string& what, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{fd, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready > 0) {
      return;
    }
    if (ready == 0) {
      throw Error(ExitCode::Unavailable, what + ": no process connected in time.");
    }
    if (errno != EINTR) {
      hand_over_failed(what);
    }
  }
}

int64_t process_at(const FileDescriptor& connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    hand_over_failed("cannot identify the process at the other end of a Unix socket");
  }
  return peer.pid;
}

// One byte, with the files as ancillary data.
struct Parcel {
  explicit Parcel(size_t files) {
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = margin.data();
    message.msg_controllen = CMSG_SPACE(files * sizeof(int));
  }
  char byte = 'f';
  iovec content{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFiles * sizeof(int))> margin{};
  msghdr message{};
};

void send_files(const FileDescriptor& connection, const std::vector<int>& files) {
  Parcel parcel(files.size());
  cmsghdr* header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), files.data(), files.size() * sizeof(int));
  if (sendmsg(connection.get(), &parcel.message, MSG_NOSIGNAL) != 1) {
    hand_over_failed("handing over shared memory failed");
  }
}

}  // namespace

HandOverSocket open_hand_over() {
  HandOverSocket opened{unix_socket(), "sherd-" + launch::random_hex(kRandomBytes)};
  const AbstractAddress address(opened.name);
  if (bind(opened.socket.get(), address.get(), address.size) != 0 ||
      listen(opened.socket.get(), SOMAXCONN) != 0) {
    hand_over_failed("cannot bind a Unix socket");
  }
  return opened;
}

void hand_over(const HandOverSocket& from, const std::vector<int64_t>& processes,
               const std::vector<int>& files, Deadline deadline) {
  std::vector<int64_t> awaited = processes;
  while (!awaited.empty()) {
    wait_readable(from.socket.get(), "handing over shared memory", deadline);
    const FileDescriptor connection(accept4(from.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() < 0) {
      hand_over_failed("handing over shared memory failed");
    }
    if (std::erase(awaited, process_at(connection)) > 0) {
      send_files(connection, files);
    }
  }
}

std::vector<FileDescriptor> take_over(const std::string& name, int64_t process, size_t count,
                                      Deadline deadline) {
  const FileDescriptor connection = unix_socket();
  const AbstractAddress address(name);
  if (connect(connection.get(), address.get(), address.size) != 0) {
    hand_over_failed("taking over shared memory failed");
  }
  if (process_at(connection) != process) {
    throw Error(ExitCode::Unavailable,
                "a process that is not the first rank of the group answered.");
  }
  wait_readable(connection.get(), "taking over shared memory", deadline);
  Parcel parcel(kMostFiles);
  const ssize_t received = recvmsg(connection.get(), &parcel.message, MSG_CMSG_CLOEXEC);
  if (received < 0) {
    hand_over_failed("taking over shared memory failed");
  }
  std::vector<FileDescriptor> files;
  const cmsghdr* header = CMSG_FIRSTHDR(&parcel.message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    const size_t found = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::array<int, kMostFiles> numbers{};
    std::memcpy(numbers.data(), CMSG_DATA(header), found * sizeof(int));
    std::transform(numbers.begin(), numbers.begin() + found, std::back_inserter(files),
                   [](int fd) { return FileDescriptor(fd); });
  }
  if (files.size() != count) {
    throw Error(ExitCode::Unavailable,
                "taking over shared memory received " + std::to_string(files.size()) + " of " +
                    std::to_string(count) + " files: raise the limit on open files (ulimit -n).");
  }
  return files;
}

}  // namespace sherd::detail
