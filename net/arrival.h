#pragma once
// Writes the bytes of answers into a file. Internal to net/.

#include <cstdint>
#include <optional>
#include <string_view>

#include "net/growing_file.h"
#include "net/http.h"

namespace sherd::net {

class Arrival {
 public:
  /// `size_bytes`: the size of the complete file, if known.
  Arrival(GrowingFile& file, std::optional<std::uint64_t> size_bytes, const Progress& progress)
      : file_(file), size_bytes_(size_bytes), progress_(progress) {}

  /// Call before each try. Returns the first byte to request.
  std::uint64_t begin();
  /// Takes a part of an answer's body. Returns false if it does not belong to the file. Throws
  /// Error: BadData for a size other than expected, Unavailable for a range other than requested.
  bool take(const Response& response, std::string_view piece);
  /// Ends an answer, which may have no body. Returns true if the file is complete.
  [[nodiscard]] bool end(const Response& response);
  /// Handles the server's answer that the file has no byte at the requested position.
  void refused(const Response& response);
  /// The expected size: the given one, else that of the last answer, else 0.
  [[nodiscard]] std::uint64_t total_bytes() const { return size_bytes_.value_or(said_bytes_); }

 private:
  void place(const Response& response);
  void require_size(const Response& response, std::uint64_t said_bytes) const;

  GrowingFile& file_;
  std::optional<std::uint64_t> size_bytes_;
  const Progress& progress_;
  std::uint64_t asked_from_ = 0;
  std::uint64_t said_bytes_ = 0;
  std::uint64_t pass_over_bytes_ = 0;  // of an answer that begins before the file's end
  bool begun_ = false;
};

}  // namespace sherd::net
