#include "launch/last_words.h"

#include <algorithm>

namespace sherd::launch {

std::string LastWords::take(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::size_t room = kLongestLine_bytes - partial_.size();
    const std::size_t count = std::min({newline, room, bytes.size()});
    partial_ += bytes.substr(0, count);
    bytes.remove_prefix(count);
    if (!bytes.empty() && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      out += complete();
    } else if (partial_.size() == kLongestLine_bytes && !bytes.empty()) {
      out += complete();
    }
  }
  return out;
}

std::string LastWords::finish() {
  return partial_.empty() ? "" : complete();
}

std::string LastWords::complete() {
  lines_.push_back(std::move(partial_));
  partial_.clear();
  if (lines_.size() > kKeptLines) {
    lines_.pop_front();
  }
  return passes_(lines_.back()) ? mark_ + lines_.back() + "\n" : "";
}

}  // namespace sherd::launch
