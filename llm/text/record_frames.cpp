#include "llm/text/record_frames.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/mapped_file.h"
#include "files/other_kind.h"
#include "llm/text/parquet_rows.h"
#include "sherd/error.h"

namespace llm::text {

namespace {

constexpr std::string_view kMark = "\xef\xbb\xbf";  // byte order mark of UTF-8
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::size_t kBufferBytes = std::size_t{256} << 10;

[[noreturn]] void refuse_data(const std::string& name, const std::string& why) {
  throw sherd::Error(sherd::ExitCode::BadData, name + ": " + why);
}

bool is_blank_text(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

// The bytes of a source with their places; a byte order mark at its begin is passed over.
class PlacedBytes {
 public:
  explicit PlacedBytes(const DataBytes& file, std::int64_t first_line = 1)
      : name_(file.name), source_(file), line_(first_line) {
    if (first_line == 1 && rest().starts_with(kMark)) {
      take(kMark.size());
    }
  }

  /// What is read and not taken; empty at the end alone.
  std::string_view rest() {
    if (next_ == end_) {
      next_ = 0;
      end_ = source_.read(buffer_);
    }
    return {buffer_.data() + next_, end_ - next_};
  }
  void take(std::size_t bytes) {
    const auto begin = buffer_.begin() + static_cast<std::ptrdiff_t>(next_);
    line_ += std::count(begin, begin + static_cast<std::ptrdiff_t>(bytes), '\n');
    next_ += bytes;
    byte_ += static_cast<std::int64_t>(bytes);
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::int64_t byte() const { return byte_; }
  [[nodiscard]] std::int64_t line() const { return line_; }

 private:
  std::string name_;
  ByteSource source_;
  std::vector<char> buffer_ = std::vector<char>(kBufferBytes);
  std::size_t next_ = 0, end_ = 0;
  std::int64_t byte_ = 0;
  std::int64_t line_;
};

// A record's text as it grows: one that is too long is counted and not kept.
class FrameText {
 public:
  void add(std::string_view bytes) {
    bytes_ += bytes.size();
    if (bytes_ <= kMaxRecordBytes) {
      text_.append(bytes);
    } else {
      text_ = {};
    }
  }
  [[nodiscard]] bool is_blank() const { return bytes_ == text_.size() && is_blank_text(text_); }
  void put_into(RecordFrame& frame) && {
    frame.end_byte = frame.begin_byte + static_cast<std::int64_t>(bytes_);
    if (bytes_ > kMaxRecordBytes) {
      frame.fault = fmt::format("has {} bytes, more than the {} that a record may have", bytes_,
                                kMaxRecordBytes);
    }
    frame.text = std::move(text_);
  }

 private:
  std::size_t bytes_ = 0;
  std::string text_;
};

class LineFrames : public RecordFrames {
 public:
  LineFrames(const DataBytes& file, std::int64_t first_line)
      : bytes_(file, first_line), is_first_(first_line == 1) {}

  std::optional<RecordFrame> next() override {
    for (;;) {
      if (bytes_.rest().empty()) {
        return std::nullopt;
      }
      RecordFrame frame{
          .number = bytes_.line(), .line = bytes_.line(), .begin_byte = bytes_.byte()};
      FrameText text = line();
      if (text.is_blank()) {
        continue;
      }
      std::move(text).put_into(frame);
      require_no_array(frame);
      is_first_ = false;
      return frame;
    }
  }
  [[nodiscard]] std::string unit() const override { return "line"; }

 private:
  // Takes it with its end.
  FrameText line() {
    FrameText text;
    for (std::string_view rest = bytes_.rest(); !rest.empty(); rest = bytes_.rest()) {
      const std::size_t end = rest.find('\n');
      text.add(rest.substr(0, end));
      bytes_.take(end == std::string_view::npos ? rest.size() : end + 1);
      if (end != std::string_view::npos) {
        break;
      }
    }
    return text;
  }
  // One on a line of its own is a bad record. The file that begins with one is another kind of
  // file, unless more records follow.
  void require_no_array(const RecordFrame& frame) {
    const std::size_t first = frame.text.find_first_not_of(kBlanks);
    if (is_first_ && first != std::string::npos && frame.text[first] == '[') {
      refuse_data(bytes_.name(),
                  "not JSON lines: it begins with '['; give format = \"json\" for an array of "
                  "records. In JSON lines each line is an object, as {\"messages\": […]}");
    }
  }

  PlacedBytes bytes_;
  bool is_first_;  // what comes next is the file's first record
};

// Finds the elements of an array without parsing them, so that a bad one hides no other.
class ArrayFrames : public RecordFrames {
 public:
  explicit ArrayFrames(const DataBytes& file) : bytes_(file) {
    pass_blanks();
    const std::string_view rest = bytes_.rest();
    if (rest.empty()) {
      is_done_ = true;
    } else if (rest.front() == '{') {
      refuse_data(bytes_.name(),
                  "not an array of records: it begins with '{'; give format = \"jsonl\" for one "
                  "object a line, or \"squad\"");
    } else if (rest.front() != '[') {
      refuse_data(bytes_.name(), "not an array of records: it does not begin with '['");
    } else {
      bytes_.take(1);
    }
  }

  std::optional<RecordFrame> next() override {
    if (is_done_) {
      return std::nullopt;
    }
    pass_blanks();
    RecordFrame frame{.number = number_ + 1, .line = bytes_.line(), .begin_byte = bytes_.byte()};
    FrameText text = element();
    if (is_done_) {
      require_nothing_more();
      if (number_ == 0 && text.is_blank()) {
        return std::nullopt;
      }
    }
    ++number_;
    std::move(text).put_into(frame);
    return frame;
  }
  [[nodiscard]] std::string unit() const override { return "record"; }

 private:
  void pass_blanks() {
    for (std::string_view rest = bytes_.rest(); !rest.empty(); rest = bytes_.rest()) {
      const std::size_t blanks = std::min(rest.find_first_not_of(kBlanks), rest.size());
      if (blanks == 0) {
        return;
      }
      bytes_.take(blanks);
    }
  }
  // Takes one with the comma or bracket behind it.
  FrameText element() {
    FrameText text;
    Nesting nesting;
    for (std::string_view rest = bytes_.rest(); !rest.empty(); rest = bytes_.rest()) {
      std::size_t next = 0;
      while (next < rest.size() && !nesting.ends(rest[next])) {
        ++next;
      }
      text.add(rest.substr(0, next));
      if (next < rest.size()) {
        is_done_ = rest[next] == ']';
        bytes_.take(next + 1);
        return text;
      }
      bytes_.take(next);
    }
    refuse_data(bytes_.name(), "the array of records has no end: is the file cut off?");
  }
  void require_nothing_more() {
    pass_blanks();
    if (!bytes_.rest().empty()) {
      refuse_data(bytes_.name(),
                  fmt::format("something follows the array of records, at byte {}", bytes_.byte()));
    }
  }

  // How deep in strings, objects and arrays the bytes of an element are.
  class Nesting {
   public:
    /// Whether the byte stands behind the element; else counts it.
    bool ends(char c) {
      if (in_string_) {
        in_string_ = is_escaped_ || c != '"';
        is_escaped_ = c == '\\' && !is_escaped_;
        return false;
      }
      if (depth_ == 0 && (c == ',' || c == ']')) {
        return true;
      }
      in_string_ = c == '"';
      depth_ += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      depth_ = std::max<std::int64_t>(depth_, 0);
      return false;
    }

   private:
    bool in_string_ = false;
    bool is_escaped_ = false;
    std::int64_t depth_ = 0;
  };

  PlacedBytes bytes_;
  std::int64_t number_ = 0;
  bool is_done_ = false;
};

class TableFrames : public RecordFrames {
 public:
  TableFrames(const DataBytes& file, char delimiter) : name_(file.name) {
    sherd_table* table = nullptr;
    checked(
        [&](char** error) {
          return sherd_text_table_open(ByteSource(file).release(), delimiter, &table, error);
        },
        name_ + ": ");
    table_.reset(table);
    char* names = nullptr;
    std::size_t length = 0;
    checked([&](char** error) { return sherd_text_table_columns(table, &names, &length, error); });
    const OwnedString owned(names);
    columns_ =
        nlohmann::json::parse(std::string_view(names, length)).get<std::vector<std::string>>();
  }

  std::optional<RecordFrame> next() override {
    sherd_text_table_row row{};
    checked([&](char** error) { return sherd_text_table_next(table_.get(), &row, error); },
            name_ + ": ");
    const OwnedString owned(row.text);
    if (row.text == nullptr) {
      return std::nullopt;
    }
    const std::string text(row.text, row.length_bytes);
    return RecordFrame{.number = static_cast<std::int64_t>(row.line),
                       .line = static_cast<std::int64_t>(row.line),
                       .begin_byte = static_cast<std::int64_t>(row.begin_byte),
                       .end_byte = static_cast<std::int64_t>(row.end_byte),
                       .text = row.is_fault ? "" : text,
                       .fault = row.is_fault ? text : ""};
  }
  [[nodiscard]] const std::vector<std::string>* columns() const override { return &columns_; }
  [[nodiscard]] std::string unit() const override { return "line"; }

 private:
  struct Close {
    void operator()(sherd_table* table) const { sherd_text_table_close(table); }
  };
  std::string name_;
  std::unique_ptr<sherd_table, Close> table_;
  std::vector<std::string> columns_;
};

class ParquetFrames : public RecordFrames {
 public:
  ParquetFrames(const DataBytes& file, const std::vector<std::string>& wanted) {
    if (!file.bytes) {
      // Its errors are those of a file that cannot be opened; what is mapped has none.
      static_cast<void>(ByteSource(file));
      mapped_ = std::make_unique<sherd::files::MappedFile>(file.name);
    }
    rows_.emplace(file.bytes.value_or(mapped_ ? mapped_->bytes() : std::string_view()), file.name,
                  wanted);
    columns_ = rows_->columns();
  }

  std::optional<RecordFrame> next() override {
    auto row = rows_->next();
    sherd::files::require_mapped_files();
    if (!row) {
      return std::nullopt;
    }
    return RecordFrame{.number = ++number_, .text = std::move(*row), .fault = {}};
  }
  [[nodiscard]] const std::vector<std::string>* columns() const override { return &columns_; }
  [[nodiscard]] std::string unit() const override { return "row"; }

 private:
  std::unique_ptr<sherd::files::MappedFile> mapped_;
  std::optional<ParquetRows> rows_;
  std::vector<std::string> columns_;
  std::int64_t number_ = 0;
};

}  // namespace

Container container_of(const DataBytes& file) {
  using Ending = std::pair<std::string_view, Container>;
  constexpr std::array<Ending, 5> kEndings = {{{".jsonl", Container::Lines},
                                               {".ndjson", Container::Lines},
                                               {".csv", Container::Csv},
                                               {".tsv", Container::Tsv},
                                               {".parquet", Container::Parquet}}};
  const std::string_view name = without_compression(file.name);
  for (const auto& [ending, container] : kEndings) {
    if (name.ends_with(ending)) {
      return container;
    }
  }
  const std::string begin = first_bytes(file, kBufferBytes);
  if (begin.starts_with("PAR1")) {
    return Container::Parquet;
  }
  const std::size_t mark = begin.starts_with(kMark) ? kMark.size() : 0;
  const std::size_t first = begin.find_first_not_of(kBlanks, mark);
  const bool is_array = first != std::string::npos && begin[first] == '[';
  return is_array ? Container::Array : Container::Lines;
}

std::unique_ptr<RecordFrames> open_frames(const DataBytes& file, Container container,
                                          const std::vector<std::string>& wanted,
                                          std::int64_t first_line) {
  if (container == Container::Parquet) {
    return std::make_unique<ParquetFrames>(file, wanted);
  }
  const std::string begin = first_bytes(file, sherd::files::kRecognisedBytes);
  sherd::files::refuse_git_lfs_pointer(file.name, begin);
  sherd::files::refuse_utf16(file.name, begin);
  switch (container) {
    case Container::Csv:
      return std::make_unique<TableFrames>(file, ',');
    case Container::Tsv:
      return std::make_unique<TableFrames>(file, '\t');
    case Container::Array:
      return std::make_unique<ArrayFrames>(file);
    default:
      return std::make_unique<LineFrames>(file, first_line);
  }
}

}  // namespace llm::text
