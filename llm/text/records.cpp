#include "llm/text/records.h"

#include <algorithm>
#include <functional>
#include <limits>
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

std::string_view without_space_at_end(std::string_view text) {
  const std::size_t last = text.find_last_not_of(kSpace);
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

// Where the text begins: after a byte order mark.
std::size_t begin_of(std::string_view bytes) {
  return bytes.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
}

char first_character(std::string_view bytes) {
  const std::size_t first = bytes.find_first_not_of(kSpace, begin_of(bytes));
  return first == std::string_view::npos ? '\0' : bytes[first];
}

// Counts lines up to bytes that are asked for in rising order.
class LineCounter {
 public:
  explicit LineCounter(std::string_view bytes) : bytes_(bytes) {}

  /// From 1.
  std::int64_t line_of(std::size_t byte) {
    const std::string_view passed = bytes_.substr(counted_, byte - std::min(counted_, byte));
    line_ += std::count(passed.begin(), passed.end(), '\n');
    counted_ = std::max(counted_, byte);
    return line_;
  }

 private:
  std::string_view bytes_;
  std::size_t counted_ = 0;
  std::int64_t line_ = 1;
};

// Collects good records and bad ones.
class Collector {
 public:
  /// `unit`: what records are counted in, "line" or "record".
  Collector(std::string_view file, std::string name, std::string unit, const Columns& columns,
            const BadSamplePolicy& policy)
      : name_(std::move(name)),
        unit_(std::move(unit)),
        columns_(columns),
        lines_(file),
        bad_(name_, policy) {}

  /// `number`: of the line or the record, from 1; `begin`: its byte in the file.
  void add(std::string_view bytes, std::int64_t number, std::size_t begin) {
    Record record = read_record(bytes, columns_.prompt, columns_.completion);
    if (!record.fault.empty()) {
      add_bad(record, bytes, number, begin + record.fault_byte);
      return;
    }
    const std::string_view trimmed = without_space_at_end(bytes);
    file_.questions.push_back({.id = unit_ + " " + std::to_string(number),
                               .question = std::move(record.prompt),
                               .answers = {{std::move(record.completion)}},
                               .begin_byte = static_cast<std::int64_t>(begin),
                               .end_byte = static_cast<std::int64_t>(begin + trimmed.size())});
  }

  QuestionFile finish() && {
    file_.skipped = std::move(bad_).skipped();
    return std::move(file_);
  }

 private:
  void add_bad(Record& record, std::string_view bytes, std::int64_t number, std::size_t byte) {
    BadSample bad{.unit = unit_,
                  .place = std::to_string(number),
                  .byte = static_cast<std::int64_t>(byte),
                  .reason = std::move(record.fault)};
    if (unit_ != "line") {
      bad.line = lines_.line_of(byte);
    }
    bad_.add(std::move(bad), without_space_at_end(bytes));
  }

  std::string name_;
  std::string unit_;
  const Columns& columns_;
  LineCounter lines_;
  BadSamples bad_;
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

// `begin`: of the line with the number `line`.
void add_lines(std::string_view all, std::size_t begin, std::int64_t line, Collector& records) {
  for (; begin < all.size(); ++line) {
    const std::size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view one = all.substr(begin, end - begin);
    if (!is_blank(one)) {
      records.add(one, line, begin);
    }
    begin = end + 1;
  }
}

}  // namespace

QuestionFile parse_jsonl(const std::string& bytes, const std::string& name, const Columns& columns,
                         const BadSamplePolicy& policy) {
  if (first_character(bytes) == '[') {
    refuse_file(name,
                "not JSON lines: it begins with '['; give format = \"json\" for an array of "
                "records");
  }
  Collector records(bytes, name, "line", columns, policy);
  add_lines(bytes, begin_of(bytes), 1, records);
  return std::move(records).finish();
}

QuestionFile parse_jsonl_lines(std::string_view lines, const std::string& name,
                               std::int64_t first_line, const Columns& columns) {
  const BadSamplePolicy all = {.skip = true,
                               .most_skipped = std::numeric_limits<std::int64_t>::max()};
  Collector records(lines, name, "line", columns, all);
  add_lines(lines, first_line == 1 ? begin_of(lines) : 0, first_line, records);
  return std::move(records).finish();
}

QuestionFile parse_json_records(const std::string& bytes, const std::string& name,
                                const Columns& columns, const BadSamplePolicy& policy) {
  const char first = first_character(bytes);
  if (first == '{') {
    refuse_file(name,
                "not an array of records: it begins with '{'; give format = \"jsonl\" for one "
                "object a line, or \"squad\"");
  }
  if (first == '\0') {
    return {};
  }
  if (first != '[') {
    refuse_file(name, "not an array of records: it does not begin with '['");
  }
  Collector records(bytes, name, "record", columns, policy);
  std::int64_t number = 0;
  ArrayScanner(bytes, name).each([&](std::string_view element, std::size_t begin) {
    records.add(element, ++number, begin);
  });
  return std::move(records).finish();
}

}  // namespace llm::text
