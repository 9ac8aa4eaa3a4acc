#include "llm/text/records.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "llm/text/record.h"
#include "sherd/error.h"

namespace llm::text {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr const char* kSpace = " \t\r\n";

[[noreturn]] void refuse_file(const std::string& name, const std::string& what) {
  throw sherd::Error(sherd::ExitCode::BadData, name + ": " + what);
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kSpace) == std::string_view::npos;
}

// Where the text begins: after a byte order mark.
std::size_t begin_of(std::string_view bytes) {
  return bytes.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
}

char first_character(std::string_view bytes) {
  const std::size_t first = bytes.find_first_not_of(kSpace, begin_of(bytes));
  return first == std::string_view::npos ? '\0' : bytes[first];
}

// Collects good records and bad ones.
class Collector {
 public:
  Collector(std::string name, std::string unit, const Columns& columns)
      : name_(std::move(name)), unit_(std::move(unit)), columns_(columns) {}

  /// `number`: of the line or the record, from 1; `begin`: its byte in the file.
  void add(std::string_view bytes, std::int64_t number, std::size_t begin) {
    const std::string place = std::to_string(number);
    Record record = read_record(bytes, columns_.prompt, columns_.completion);
    if (!record.fault.empty()) {
      const auto byte = static_cast<std::int64_t>(begin + record.fault_byte);
      file_.skipped.push_back({name_, unit_, place, byte, std::move(record.fault)});
      return;
    }
    file_.questions.push_back({.id = unit_ + " " + place,
                               .question = std::move(record.prompt),
                               .answers = {{std::move(record.completion)}}});
  }

  QuestionFile finish(const BadSamplePolicy& policy) && {
    refuse_unless_skipped(file_.skipped, name_, policy);
    if (file_.questions.empty()) {
      refuse_file(name_, file_.skipped.empty()
                             ? "contains no records"
                             : "contains no good record; the first: " + file_.skipped[0].text());
    }
    return std::move(file_);
  }

 private:
  std::string name_;
  std::string unit_;
  const Columns& columns_;
  QuestionFile file_;
};

// Finds the elements of an array without parsing them, so that a bad one hides no other.
class ArrayScanner {
 public:
  ArrayScanner(std::string_view bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  void each(const std::function<void(std::string_view element, std::size_t begin)>& visit) {
    next_ = bytes_.find('[') + 1;
    std::size_t begin = next_;
    bool any = false;
    for (; next_ < bytes_.size(); ++next_) {
      const char c = bytes_[next_];
      if (c == '"') {
        skip_string();
      } else if (depth_ == 0 && (c == ',' || c == ']')) {
        const std::string_view element = bytes_.substr(begin, next_ - begin);
        if (c == ',' || any || !is_blank(element)) {
          const std::size_t lead = std::min(element.find_first_not_of(kSpace), element.size());
          visit(element.substr(lead), begin + lead);
        }
        if (c == ']') {
          return require_end();
        }
        any = true;
        begin = next_ + 1;
      } else {
        depth_ += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
        depth_ = std::max(depth_, 0);
      }
    }
    refuse_file(name_, "the array of records has no end: is the file cut off?");
  }

 private:
  // To the closing quote, or the end of the file.
  void skip_string() {
    for (++next_; next_ < bytes_.size() && bytes_[next_] != '"'; ++next_) {
      next_ += bytes_[next_] == '\\' ? 1 : 0;
    }
  }
  void require_end() const {
    if (!is_blank(bytes_.substr(next_ + 1))) {
      refuse_file(name_, fmt::format("something follows the array of records, at byte {}",
                                     bytes_.find_first_not_of(kSpace, next_ + 1)));
    }
  }

  std::string_view bytes_;
  std::string name_;
  std::size_t next_ = 0;
  int depth_ = 0;
};

}  // namespace

QuestionFile parse_jsonl(const std::string& bytes, const std::string& name, const Columns& columns,
                         const BadSamplePolicy& policy) {
  if (first_character(bytes) == '[') {
    refuse_file(name,
                "not JSON lines: it begins with '['; give format = \"json\" for an array of "
                "records");
  }
  Collector records(name, "line", columns);
  const std::string_view all = bytes;
  std::int64_t line = 1;
  for (std::size_t begin = begin_of(all); begin < all.size(); ++line) {
    const std::size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view one = all.substr(begin, end - begin);
    if (!is_blank(one)) {
      records.add(one, line, begin);
    }
    begin = end + 1;
  }
  return std::move(records).finish(policy);
}

QuestionFile parse_json_records(const std::string& bytes, const std::string& name,
                                const Columns& columns, const BadSamplePolicy& policy) {
  const char first = first_character(bytes);
  if (first == '{') {
    refuse_file(name,
                "not an array of records: it begins with '{'; give format = \"jsonl\" for one "
                "object a line, or \"squad\"");
  }
  if (first != '[') {
    refuse_file(name, first == '\0' ? "contains no records"
                                    : "not an array of records: it does not begin with '['");
  }
  Collector records(name, "record", columns);
  std::int64_t number = 0;
  ArrayScanner(bytes, name).each([&](std::string_view element, std::size_t begin) {
    records.add(element, ++number, begin);
  });
  return std::move(records).finish(policy);
}

}  // namespace llm::text
