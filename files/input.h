#pragma once
// Reading files that nobody vouches for: regular files only, whole or an Error, never more than a
// limit.

#include <cstddef>
#include <cstdint>
#include <string>

#include "files/file_descriptor.h"

namespace sherd::files {

/// The largest configuration file that is read. Those of today's models have a few hundred KB.
inline constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;

/// A regular file opened for reading, and its size when it was opened.
struct InputFile {
  FileDescriptor descriptor;
  uint64_t size_bytes = 0;
};

/// Opens a regular file, without waiting for anything. Throws Error: InputMissing if it is not
/// there or may not be read, BadData if it is something else than a regular file (a folder, a pipe,
/// a device).
[[nodiscard]] InputFile open_input(const std::string& path);

/// Reads bytes [offset, offset + bytes) into `out`. Throws Error(StorageIo) on a read error, and
/// when the file ends early.
void read_exactly(int fd, const std::string& path, uint64_t offset, void* out, size_t bytes);

/// Returns the bytes of a regular file. Throws as `open_input`; BadData if it has more than
/// `max_bytes` bytes or is a Git LFS pointer, StorageIo if reading fails.
[[nodiscard]] std::string read_file(const std::string& path, uint64_t max_bytes);

}  // namespace sherd::files
