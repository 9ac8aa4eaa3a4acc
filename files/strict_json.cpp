#include "files/strict_json.h"

#include <algorithm>
#include <istream>
#include <utility>

#include "sherd/error.h"

namespace sherd::files {

std::string in_quotes(const std::string& text) {
  constexpr size_t kMaxShownBytes = 200;
  std::string shown = text.substr(0, kMaxShownBytes);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return '"' + shown + (text.size() > kMaxShownBytes ? "…\"" : "\"");
}

ByteStream::ByteStream(std::string place, ReadBytes read, uint64_t begin, uint64_t size_bytes)
    : place_(std::move(place)), read_(std::move(read)), begin_(begin), size_bytes_(size_bytes) {}

uint64_t ByteStream::position() const {
  return loaded_bytes_ - static_cast<uint64_t>(egptr() - gptr());
}

void ByteStream::refuse_at(uint64_t byte, const std::string& what) const {
  throw Error(ExitCode::BadData, place_ + ", near byte " + std::to_string(byte) + ": " + what);
}

ByteStream::int_type ByteStream::underflow() {
  if (position() - token_begin_ > kMaxTokenBytes) {
    refuse("a string or a run of white space of more than " + std::to_string(kMaxTokenBytes) +
           " bytes");
  }
  const auto bytes =
      static_cast<size_t>(std::min<uint64_t>(buffer_.size(), size_bytes_ - loaded_bytes_));
  if (bytes == 0) {
    exhausted_ = true;
    return traits_type::eof();
  }
  read_(begin_ + loaded_bytes_, buffer_.data(), bytes);
  // The parser would skip a byte order mark, which RFC 8259 forbids to write.
  if (loaded_bytes_ == 0 && static_cast<unsigned char>(buffer_[0]) == 0xEF) {
    refuse("expected '{', found a byte order mark or other text");
  }
  loaded_bytes_ += bytes;
  setg(buffer_.data(), buffer_.data(), buffer_.data() + bytes);
  return traits_type::to_int_type(buffer_[0]);
}

void StrictSax::refuse_found(const std::string& found) const {
  refuse("expected " + expected() + ", found " + found);
}

void StrictSax::on_unsigned(uint64_t value) {
  refuse_found("the number " + std::to_string(value));
}

void StrictSax::on_string(std::string& value) {
  refuse_found("the string " + in_quotes(value));
}

bool StrictSax::ignored_scalar() {
  if (depth_ == ignored_depth_) {
    ignored_depth_ = -1;
  }
  return true;
}

bool StrictSax::refused_scalar(const char* found) {
  bytes_.token_done();
  if (!ignoring()) {
    refuse_found(found);
  }
  return ignored_scalar();
}

bool StrictSax::null() {
  bytes_.token_done();
  if (ignoring()) {
    return ignored_scalar();
  }
  on_null();
  return true;
}

bool StrictSax::number_unsigned(number_unsigned_t value) {
  bytes_.token_done();
  if (ignoring()) {
    return ignored_scalar();
  }
  on_unsigned(value);
  return true;
}

bool StrictSax::number_float(number_float_t, const string_t& text) {
  bytes_.token_done();
  if (!ignoring()) {
    refuse_found("the number " + in_quotes(text));
  }
  return ignored_scalar();
}

bool StrictSax::string(string_t& value) {
  bytes_.token_done();
  if (ignoring()) {
    return ignored_scalar();
  }
  on_string(value);
  return true;
}

bool StrictSax::key(string_t& name) {
  bytes_.token_done();
  if (!ignoring()) {
    on_key(name);
  }
  return true;
}

bool StrictSax::open() {
  bytes_.token_done();
  if (++depth_ > kMaxJsonDepth) {
    refuse("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
  }
  return true;
}

bool StrictSax::close() {
  bytes_.token_done();
  if (--depth_ == ignored_depth_) {
    ignored_depth_ = -1;
  }
  return true;
}

bool StrictSax::start_object(std::size_t) {
  if (!ignoring()) {
    on_start_object();
  }
  return open();
}

bool StrictSax::end_object() {
  const bool heard = !ignoring();
  close();
  if (heard) {
    on_end_object();
  }
  return true;
}

bool StrictSax::start_array(std::size_t) {
  if (!ignoring()) {
    on_start_array();
  }
  return open();
}

bool StrictSax::end_array() {
  const bool heard = !ignoring();
  close();
  if (heard) {
    on_end_array();
  }
  return true;
}

bool StrictSax::parse_error(std::size_t position, const std::string&,
                            const nlohmann::json::exception& fault) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while … - …;
  // last read: '…'; …"
  std::string what = fault.what();
  const size_t begin = what.find("syntax error");
  what = what.substr(begin == std::string::npos ? 0 : begin);
  what = what.substr(0, std::min(what.find("; last read"), size_t{200}));
  bytes_.refuse_at(position - 1, "not valid JSON: " + what);
}

void parse_strict_json(ByteStream& bytes, StrictSax& sax) {
  std::istream stream(&bytes);
  nlohmann::json::sax_parse(stream, &sax);
  // The parser takes a NUL byte for the end of the text.
  if (!bytes.exhausted()) {
    bytes.refuse("a NUL byte after the JSON text");
  }
}

}  // namespace sherd::files
