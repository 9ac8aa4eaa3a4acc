#include "llm/inputs/line_source.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "files/input.h"
#include "llm/text/records.h"
#include "sherd/error.h"

namespace llm::inputs {

namespace {

namespace files = sherd::files;

constexpr std::int64_t kKilobyte = 1000;
constexpr std::int64_t kBatchBytes = std::int64_t{256} << 10;

// Lines that lie together in a file.
struct Lines {
  std::string bytes;
  Cursor cursor;
};

ParsedBatch parsed_lines(const Lines& lines, std::shared_ptr<const DataFile> source) {
  const auto number = static_cast<std::size_t>(lines.cursor.file);
  const text::DataBytes file{source->files[number].name, lines.bytes};
  text::RecordReading reading = record_reading_of(file, source->reading);
  reading.bad = {.skip = true, .most_skipped = std::numeric_limits<std::int64_t>::max()};
  reading.first_line = lines.cursor.number;
  text::QuestionFile records = text::read_records(file, reading);
  ParsedBatch batch;
  batch.skipped = std::exchange(records.skipped, {});
  for (text::BadSample& bad : batch.skipped) {
    bad.byte = bad.byte.value_or(0) + lines.cursor.byte;
  }
  for (text::Question& question : records.questions) {
    question.begin_byte += lines.cursor.byte;
    question.end_byte += lines.cursor.byte;
    question.file = number;
  }
  batch.others = keep_side(records, source->reading);
  batch.end = records.questions.size();
  batch.unread = std::exchange(records.unread, {});
  if (source->files.size() > 1) {
    batch.unread.place_in(std::filesystem::path(file.name).filename().string());
  }
  batch.questions = std::make_shared<text::QuestionFile>(std::move(records));
  batch.file = std::move(source);
  return batch;
}

class LineSource final : public RecordSource {
 public:
  LineSource(const Source& source, const Cursor& begin)
      : source_(std::make_shared<DataFile>(source.file)), next_(begin) {
    for (const FileStamp& stamp : source.stamps) {
      sizes_.push_back(stamp.bytes);
      total_ += stamp.bytes;
    }
    for (std::int64_t file = 0; file < begin.file; ++file) {
      read_ += sizes_[static_cast<std::size_t>(file)];
    }
    read_ += begin.byte;
  }

  [[nodiscard]] std::int64_t total() const override { return total_ / kKilobyte; }
  [[nodiscard]] std::string unit() const override { return "KB"; }

  [[nodiscard]] std::optional<RecordBatch> next() override {
    while (next_.file < std::ssize(sizes_) &&
           next_.byte >= sizes_[static_cast<std::size_t>(next_.file)]) {
      next_ = {next_.batch, next_.file + 1, 0, 1};
    }
    if (next_.file == std::ssize(sizes_)) {
      return std::nullopt;
    }
    auto lines = std::make_shared<Lines>(Lines{read_lines(), next_});
    if (next_.byte == 0) {
      refuse_array(lines->bytes);
    }
    const Cursor cursor = next_;
    const std::int64_t size = std::ssize(lines->bytes);
    ++next_.batch;
    next_.byte += size;
    next_.number += std::count(lines->bytes.begin(), lines->bytes.end(), '\n');
    read_ += size;
    return RecordBatch{cursor, read_ / kKilobyte,
                       [lines, source = source_] { return parsed_lines(*lines, source); }};
  }

 private:
  // Whole lines, of which the last of a file may have no end.
  std::string read_lines() {
    const auto file = static_cast<std::size_t>(next_.file);
    const std::string& path = source_->files[file].name;
    const std::int64_t left = sizes_[file] - next_.byte;
    const files::InputFile input = files::open_input(path);
    std::string bytes;
    for (std::int64_t want = kBatchBytes;; want *= 2) {
      const std::int64_t begin = std::ssize(bytes);
      bytes.resize(static_cast<std::size_t>(std::min(want, left)));
      files::read_exactly(input.descriptor.get(), path,
                          static_cast<std::uint64_t>(next_.byte + begin), bytes.data() + begin,
                          bytes.size() - static_cast<std::size_t>(begin));
      const std::size_t end = bytes.rfind('\n');
      if (std::ssize(bytes) == left) {
        return bytes;
      }
      if (end != std::string::npos) {
        bytes.resize(end + 1);
        return bytes;
      }
    }
  }

  // Refuses a file that holds an array, as read_records() does.
  void refuse_array(const std::string& bytes) const {
    const std::size_t end = bytes.find_first_not_of(" \t\r\n\xef\xbb\xbf");
    if (end != std::string::npos && bytes[end] == '[') {
      static_cast<void>(text::read_records(
          {source_->files[static_cast<std::size_t>(next_.file)].name, bytes}, {}));
    }
  }

  std::shared_ptr<const DataFile> source_;
  Cursor next_;
  std::vector<std::int64_t> sizes_;
  std::int64_t total_ = 0;
  std::int64_t read_ = 0;
};

}  // namespace

std::unique_ptr<RecordSource> lines_of(const Source& source, const Cursor& begin) {
  return std::make_unique<LineSource>(source, begin);
}

}  // namespace llm::inputs
