#pragma once
// JSON of files that nobody vouches for, read as a stream: bounded memory, no duplicate or surplus
// anything. (json.h reads small ones as a document.)

#include <array>
#include <cstdint>
#include <functional>
#include <streambuf>
#include <string>

#include <nlohmann/json.hpp>

#include "files/json.h"

namespace sherd::files {

/// Reads bytes [offset, offset + bytes) of a file into `out`, or throws Error.
using ReadBytes = std::function<void(uint64_t offset, void* out, size_t bytes)>;

/// A string, or a run of white space, that is longer than this is refused: the parser keeps it in
/// memory.
constexpr uint64_t kMaxTokenBytes = uint64_t{2} << 20;

/// A string of a file as it stands in a message: quoted, control characters replaced, cut when
/// long.
std::string in_quotes(const std::string& text);

/// `size_bytes` bytes of a file from `begin` on, as a stream.
class ByteStream : public std::streambuf {
 public:
  /// `place` starts each message, e.g. "model.safetensors: header".
  ByteStream(std::string place, ReadBytes read, uint64_t begin, uint64_t size_bytes);

  /// Tells the stream that the parser has done with what it has read so far.
  void token_done() { token_begin_ = position(); }
  /// Whether the parser has asked for more than there is.
  [[nodiscard]] bool exhausted() const { return exhausted_; }
  /// Throws Error(BadData): place, byte, `what`.
  [[noreturn]] void refuse(const std::string& what) const { refuse_at(position(), what); }
  [[noreturn]] void refuse_at(uint64_t byte, const std::string& what) const;

 protected:
  int_type underflow() override;

 private:
  [[nodiscard]] uint64_t position() const;

  std::string place_;
  ReadBytes read_;
  uint64_t begin_;
  uint64_t size_bytes_;
  uint64_t loaded_bytes_ = 0;  // of size_bytes_, those that have been in buffer_
  uint64_t token_begin_ = 0;
  bool exhausted_ = false;
  std::array<char, 64 * 1024> buffer_{};
};

/// Receives the events of a JSON text. Whatever a derived class does not override is refused, with
/// what it expected.
class StrictSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit StrictSax(ByteStream& bytes) : bytes_(bytes) {}

  bool null() final;
  bool boolean(bool) final { return refused_scalar("a boolean"); }
  bool number_integer(number_integer_t) final { return refused_scalar("a negative number"); }
  bool number_unsigned(number_unsigned_t value) final;
  bool number_float(number_float_t, const string_t& text) final;
  bool string(string_t& value) final;
  bool binary(binary_t&) final { return refused_scalar("binary data"); }
  bool start_object(std::size_t) final;
  bool key(string_t& name) final;
  bool end_object() final;
  bool start_array(std::size_t) final;
  bool end_array() final;
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::json::exception& fault) final;

 protected:
  virtual void on_null() { refuse_found("null"); }
  virtual void on_unsigned(uint64_t value);
  virtual void on_string(std::string& value);
  virtual void on_key(std::string& name) = 0;
  virtual void on_start_object() { refuse_found("an object"); }
  virtual void on_end_object() = 0;
  virtual void on_start_array() { refuse_found("an array"); }
  virtual void on_end_array() {}
  /// What may stand here, for messages.
  [[nodiscard]] virtual std::string expected() const = 0;

  /// The value that follows is read and forgotten, whatever it is.
  void ignore_value() { ignored_depth_ = depth_; }
  [[noreturn]] void refuse(const std::string& what) const { bytes_.refuse(what); }
  [[noreturn]] void refuse_found(const std::string& found) const;

 private:
  [[nodiscard]] bool ignoring() const { return ignored_depth_ >= 0; }
  bool ignored_scalar();
  bool refused_scalar(const char* found);
  bool open();
  bool close();

  ByteStream& bytes_;
  int depth_ = 0;
  int ignored_depth_ = -1;
};

/// Parses all of `bytes` as one JSON text. Throws Error(BadData), which names the byte.
void parse_strict_json(ByteStream& bytes, StrictSax& sax);

}  // namespace sherd::files
