#include "net/arrival.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "net/url.h"
#include "sherd/error.h"

namespace sherd::net {
namespace {

// A number in `text` after `mark`; none without one.
std::optional<std::uint64_t> number_after(const std::string& text, const std::string& mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string::npos) {
    return std::nullopt;
  }
  std::uint64_t number = 0;
  const char* begin = text.data() + at + mark.size();
  const bool is_number =
      std::from_chars(begin, text.data() + text.size(), number).ec == std::errc{};
  return is_number ? std::optional(number) : std::nullopt;
}

}  // namespace

std::uint64_t Arrival::begin() {
  if (size_bytes_ && file_.size_bytes() > *size_bytes_) {
    file_.start_over();
  }
  asked_from_ = file_.size_bytes();
  said_bytes_ = 0;
  pass_over_bytes_ = 0;
  begun_ = false;
  return asked_from_;
}

bool Arrival::take(const Response& response, std::string_view piece) {
  if (!response.ok()) {
    return false;
  }
  place(response);
  const std::uint64_t passed = std::min<std::uint64_t>(pass_over_bytes_, piece.size());
  pass_over_bytes_ -= passed;
  piece.remove_prefix(static_cast<std::size_t>(passed));
  if (piece.empty()) {
    return true;
  }
  if (size_bytes_ && file_.size_bytes() + piece.size() > *size_bytes_) {
    throw Error(ExitCode::BadData, shown(response.url) + ": the server sends more than the " +
                                       std::to_string(*size_bytes_) + " that were announced");
  }
  file_.append(piece);
  if (progress_) {
    progress_(file_.size_bytes(), total_bytes());
  }
  return true;
}

bool Arrival::end(const Response& response) {
  place(response);
  return pass_over_bytes_ == 0 && file_.size_bytes() >= total_bytes();
}

void Arrival::refused(const Response& response) {
  if (const auto said = number_after(response.header("content-range"), "*/")) {
    require_size(response, *said);
    if (asked_from_ < *said) {
      return;  // it contradicts itself
    }
  }
  file_.start_over();  // what is there cannot be the file's beginning
}

void Arrival::place(const Response& response) {
  if (std::exchange(begun_, true)) {
    return;
  }
  const std::string range = response.header("content-range");
  const bool goes_on = response.status == 206;
  if (goes_on && number_after(range, "bytes ") != asked_from_) {
    throw Error(ExitCode::Unavailable,
                shown(response.url) + ": the server was asked for bytes from " +
                    std::to_string(asked_from_) + " on, and sent '" + printable(range) + "'");
  }
  const auto said =
      goes_on ? number_after(range, "/") : number_after(response.header("content-length"), "");
  if (said) {
    require_size(response, *said);
    if (!size_bytes_ && *said < file_.size_bytes()) {
      file_.start_over();
    }
  }
  said_bytes_ = said.value_or(0);
  pass_over_bytes_ = goes_on ? 0 : file_.size_bytes();
}

void Arrival::require_size(const Response& response, std::uint64_t said_bytes) const {
  if (size_bytes_ && *size_bytes_ != said_bytes) {
    throw Error(ExitCode::BadData,
                shown(response.url) + ": has " + std::to_string(said_bytes) + " bytes, not the " +
                    std::to_string(*size_bytes_) +
                    " that were announced. Is something in between, such as a login page?");
  }
}

}  // namespace sherd::net
