#pragma once
// What answers bring of a file, on its way into it. Of net/ alone.

#include <cstdint>
#include <optional>
#include <string_view>

#include "net/growing_file.h"
#include "net/http.h"

namespace sherd::net {

class Arrival {
 public:
  /// `size_bytes`: what the file has to have at its end, where it is known.
  Arrival(GrowingFile& file, std::optional<std::uint64_t> size_bytes, const Progress& progress)
      : file_(file), size_bytes_(size_bytes), progress_(progress) {}

  /// Before each try; returns the byte from which on the file is to be asked for.
  std::uint64_t begin();
  /// A piece of an answer. False: it is none of the file's. Throws Error: BadData for another size
  /// than the file should have, Unavailable for another part than was asked for.
  bool take(const Response& response, std::string_view piece);
  /// An answer's end; whether the file is whole. An answer may have no body at all.
  [[nodiscard]] bool end(const Response& response);
  /// The server says that the file has no byte where it was asked for the rest.
  void refused(const Response& response);
  /// What the file should have: as it was told, else as the last answer said; 0 where nobody did.
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
