#pragma once
// The bytes of a data file, decompressed as they are read.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "llm/text/c_interface.h"

namespace llm::text {

/// A data file by its path, or its bytes, which must live as long as what reads them.
struct DataBytes {
  std::string name;  ///< its path
  std::optional<std::string_view> bytes = std::nullopt;
};

/// Reads a file once, from its begin to its end. gzip (several members, zeros after the last one)
/// and Zstandard are recognised by their first bytes. Memory: 512 KiB, and of Zstandard the window,
/// at most 128 MiB.
class ByteSource {
 public:
  /// Throws sherd::Error: InputMissing if the file is not there, BadData if it is no regular file,
  /// its name ends in .gz or .zst and its content is something else, or it is a Git LFS pointer or
  /// text in UTF-16.
  explicit ByteSource(const DataBytes& file);

  [[nodiscard]] bool is_compressed() const { return is_compressed_; }
  /// How many bytes were written to the begin of `buffer`: fewer than it holds at the end alone.
  /// Throws sherd::Error(BadData) where compressed data is damaged or has no end.
  std::size_t read(std::span<char> buffer);
  /// Gives the stream away.
  [[nodiscard]] sherd_stream* release() && { return stream_.release(); }

 private:
  struct Close {
    void operator()(sherd_stream* stream) const { sherd_text_stream_close(stream); }
  };

  std::string name_;
  std::unique_ptr<sherd_stream, Close> stream_;
  bool is_compressed_ = false;
};

/// The first bytes of a file as ByteSource reads it, at most `bytes`.
[[nodiscard]] std::string first_bytes(const DataBytes& file, std::size_t bytes);

/// The name without the ending that says how the file is compressed.
[[nodiscard]] std::string_view without_compression(std::string_view name);

}  // namespace llm::text
