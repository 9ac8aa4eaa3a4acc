#pragma once
// The part of a GGUF file before its tensors, read item by item.

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "files/input.h"
#include "llm/gguf/gguf_value.h"

namespace llm::gguf {

/// Reads numbers, strings and values in a file's order, never beyond its end.
class HeaderReader {
 public:
  static constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{256} << 20;
  static constexpr std::uint64_t kMaxItems = std::uint64_t{1} << 24;  ///< of all arrays

  HeaderReader(const std::string& path, const sherd::files::InputFile& file)
      : path_(path), file_(file) {}

  /// `what`: what is read, for messages, as all below.
  template <class Number>
  [[nodiscard]] Number number(const std::string& what) {
    Number value;
    read(&value, sizeof value, what);
    return value;
  }
  [[nodiscard]] std::string text(const std::string& what, std::uint64_t max_bytes);
  [[nodiscard]] KeyValue key_value();
  [[nodiscard]] TensorInfo tensor();
  /// A count of things of which each takes at least `least_bytes`. Throws BadData where so many
  /// cannot be there, or are more than `most`.
  [[nodiscard]] std::uint64_t count(const std::string& what, std::uint64_t most,
                                    std::uint64_t least_bytes);

  /// The byte that is read next.
  [[nodiscard]] std::uint64_t position() const { return position_; }
  /// Throws sherd::Error(BadData): "<file>: byte <position>: <what>".
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  void read(void* out, std::size_t bytes, const std::string& what);
  [[nodiscard]] Value value(ValueType type, const std::string& what);
  [[nodiscard]] Value array(const std::string& what);
  [[nodiscard]] ValueType value_type(const std::string& what);

  const std::string& path_;
  const sherd::files::InputFile& file_;
  std::uint64_t position_ = 0;
  std::uint64_t items_ = 0;
  std::uint64_t buffer_begin_ = 0;
  std::size_t buffer_bytes_ = 0;
  std::array<char, 64 * 1024> buffer_{};
};

}  // namespace llm::gguf
