#pragma once
// Pipes, and whole writes.

#include <string>
#include <string_view>
#include <utility>

#include "files/file_descriptor.h"

namespace sherd::launch {

using files::FileDescriptor;

/// Both ends are closed on exec.
struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

/// Throws `Error` (Unavailable) if the system has no descriptor left.
[[nodiscard]] Pipe make_pipe();

/// Two sockets that are connected to each other; both are closed on exec. Throws as make_pipe().
[[nodiscard]] std::pair<FileDescriptor, FileDescriptor> make_socket_pair();

/// Makes reads and writes of `fd` return at once.
void set_non_blocking(int fd);

/// What lay ready in a descriptor.
struct Bytes {
  std::string data;
  bool at_end = false;  ///< no more can come
};

/// All that lies ready in a non-blocking pipe.
[[nodiscard]] Bytes read_available(int fd);

/// Writes all of `text`, or gives up silently where nobody reads any more. SIGPIPE must be blocked.
void write_all(int fd, std::string_view text);

}  // namespace sherd::launch
