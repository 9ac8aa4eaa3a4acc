#include "llm/text/json_positions.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace llm::text {

namespace {

class Scanner {
 public:
  Scanner(std::string_view text, const std::unordered_set<std::string>& pointers)
      : text_(text), pointers_(pointers) {}

  std::unordered_map<std::string, JsonPosition> scan() {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    next_ = text_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
    while (next_ < text_.size()) {
      token();
    }
    return std::move(found_);
  }

 private:
  // An array or object that is open.
  struct Level {
    bool is_array = false;
    std::int64_t index = 0;             // of the element that is read, or comes
    bool has_name = false;              // a field's, whose value comes
    std::size_t pointer_bytes = 0;      // of the pointer to it
    std::optional<JsonPosition> begun;  // it is wanted
  };

  void token() {
    const char c = text_[next_];
    if (c == '"') {
      string();
    } else if (c == '{' || c == '[') {
      const auto wanted = begin_value();
      levels_.push_back({c == '[', 0, false, pointer_.size(), wanted});
      ++next_;
    } else if (c == '}' || c == ']') {
      ++next_;
      end_level();
    } else if (c == ',') {
      ++next_;
      if (!levels_.empty()) {
        ++levels_.back().index;
      }
    } else if (c == ':' || c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      line_ += c == '\n' ? 1 : 0;
      ++next_;
    } else {
      const auto wanted = begin_value();
      next_ = std::min(text_.find_first_of(",]} \t\r\n", next_), text_.size());
      end_value(wanted);
    }
  }

  void string() {
    const bool is_name = !levels_.empty() && !levels_.back().is_array && !levels_.back().has_name;
    const auto wanted = is_name ? std::nullopt : begin_value();
    const std::size_t begin = ++next_;
    while (next_ < text_.size() && text_[next_] != '"') {
      next_ += text_[next_] == '\\' ? 2 : 1;
    }
    if (is_name) {
      levels_.back().has_name = true;
      pointer_.append("/").append(text_.substr(begin, next_ - begin));
    }
    ++next_;
    if (!is_name) {
      end_value(wanted);
    }
  }

  // A value begins: the pointer becomes its own.
  std::optional<JsonPosition> begin_value() {
    if (!levels_.empty() && levels_.back().is_array) {
      pointer_.append("/").append(std::to_string(levels_.back().index));
    }
    return pointers_.contains(pointer_) ? std::optional(JsonPosition{next_, next_, line_})
                                        : std::nullopt;
  }

  void end_value(std::optional<JsonPosition> wanted) {
    if (wanted) {
      wanted->end_byte = std::min(next_, text_.size());
      found_[pointer_] = *wanted;
    }
    pointer_.resize(levels_.empty() ? 0 : levels_.back().pointer_bytes);
    if (!levels_.empty()) {
      levels_.back().has_name = false;
    }
  }

  void end_level() {
    if (levels_.empty()) {
      return;
    }
    const auto wanted = levels_.back().begun;
    levels_.pop_back();
    end_value(wanted);
  }

  std::string_view text_;
  const std::unordered_set<std::string>& pointers_;
  std::unordered_map<std::string, JsonPosition> found_;
  std::vector<Level> levels_;
  std::string pointer_;  // to the value that is read
  std::size_t next_ = 0;
  std::int64_t line_ = 1;
};

}  // namespace

std::unordered_map<std::string, JsonPosition> json_positions(
    std::string_view text, const std::unordered_set<std::string>& pointers) {
  return Scanner(text, pointers).scan();
}

}  // namespace llm::text
