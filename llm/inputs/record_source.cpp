#include "llm/inputs/record_source.h"

#include <algorithm>
#include <utility>

#include "llm/inputs/line_source.h"
#include "llm/text/byte_source.h"
#include "llm/text/conversation.h"
#include "llm/text/records.h"

namespace llm::inputs {

namespace {

constexpr std::int64_t kBatchRecords = 128;
constexpr std::int64_t kMostStreamedBytes = std::int64_t{256} << 10;

// Of its texts; a conversation has its place in the file, or is written out.
std::int64_t streamed_bytes(const text::Question& question) {
  std::int64_t bytes = std::ssize(question.question);
  for (const text::Answer& answer : question.answers) {
    bytes += std::ssize(answer.text);
  }
  bytes = std::max(bytes, question.end_byte - question.begin_byte);
  if (bytes == 0 && question.conversation) {
    bytes = std::ssize(question.conversation->messages.dump(
        -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  return bytes;
}

// Questions about contexts, whose files are parsed as a whole.
class WholeSource final : public RecordSource {
 public:
  WholeSource(const Source& source, const Cursor& begin)
      : file_(std::make_shared<DataFile>(whole_file(source))), next_(begin) {
    text::QuestionFile all = parse_questions(*file_);
    skipped_ = std::exchange(all.skipped, {});
    unread_ = std::exchange(all.unread, {});
    questions_ = std::make_shared<text::QuestionFile>(std::move(all));
  }

  [[nodiscard]] std::int64_t total() const override { return count(); }
  [[nodiscard]] std::string unit() const override { return "samples"; }

  [[nodiscard]] std::optional<RecordBatch> next() override {
    const std::int64_t begin = next_.number - 1;
    if (begin >= count()) {
      return std::nullopt;
    }
    const std::int64_t end = std::min(begin + kBatchRecords, count());
    RecordBatch batch{next_, end, [this, begin, end] {
                        return ParsedBatch{questions_,
                                           static_cast<std::size_t>(begin),
                                           static_cast<std::size_t>(end),
                                           begin == 0 ? skipped_ : std::vector<text::BadSample>(),
                                           file_,
                                           0,
                                           begin == 0 ? unread_ : text::UnreadFields()};
                      }};
    ++next_.batch;
    next_.number = end + 1;
    return batch;
  }

 private:
  [[nodiscard]] std::int64_t count() const { return std::ssize(questions_->questions); }

  std::shared_ptr<const DataFile> file_;
  std::shared_ptr<const text::QuestionFile> questions_;
  std::vector<text::BadSample> skipped_;
  text::UnreadFields unread_;
  Cursor next_;
};

// Records that are parsed as they are read: of arrays, tables, compressed files.
class RecordStream final : public RecordSource {
 public:
  RecordStream(const Source& source, const Cursor& begin)
      : source_(std::make_shared<DataFile>(source.file)), next_(begin) {
    if (next_.file < std::ssize(source_->files)) {
      open();
      for (std::int64_t record = 1; record < next_.number && reader_->next(); ++record) {
        ++done_;
      }
      static_cast<void>(reader_->take_unread());  // counted before
    }
  }

  [[nodiscard]] std::int64_t total() const override { return 0; }
  [[nodiscard]] std::string unit() const override { return "records"; }

  [[nodiscard]] std::optional<RecordBatch> next() override {
    if (next_.file == std::ssize(source_->files)) {
      return std::nullopt;
    }
    const Cursor cursor = next_;
    ParsedBatch batch;
    text::QuestionFile some = read_some(batch.skipped);
    batch.others = keep_side(some, source_->reading);
    batch.end = some.questions.size();
    batch.unread = std::exchange(some.unread, {});
    batch.questions = std::make_shared<text::QuestionFile>(std::move(some));
    batch.file = source_;
    ++next_.batch;
    return RecordBatch{cursor, done_, [batch] { return batch; }};
  }

 private:
  [[nodiscard]] const std::string& name() const {
    return source_->files[static_cast<std::size_t>(next_.file)].name;
  }

  void open() {
    const text::DataBytes file{name()};
    are_placed_ = !text::ByteSource(file).is_compressed();
    reader_.emplace(file, record_reading_of(file, source_->reading));
  }

  void take_unread(text::QuestionFile& some) {
    some.unread = reader_->take_unread();
    if (source_->files.size() > 1) {
      some.unread.place_in(std::filesystem::path(name()).filename().string());
    }
  }

  // Up to the end of the file, whose faults then stand in `skipped`.
  text::QuestionFile read_some(std::vector<text::BadSample>& skipped) {
    text::QuestionFile some;
    for (std::int64_t bytes = 0;
         std::ssize(some.questions) < kBatchRecords && bytes < kMostStreamedBytes;) {
      std::optional<text::Question> question = reader_->next();
      if (!question) {
        take_unread(some);
        skipped = std::move(*reader_).skipped();
        next_ = {next_.batch, next_.file + 1, 0, 1};
        if (next_.file < std::ssize(source_->files)) {
          open();
        }
        return some;
      }
      bytes += streamed_bytes(*question);
      if (!are_placed_) {
        question->begin_byte = question->end_byte = 0;
      }
      question->file = static_cast<std::size_t>(next_.file);
      some.questions.push_back(std::move(*question));
      ++next_.number;
      ++done_;
    }
    take_unread(some);
    return some;
  }

  std::shared_ptr<const DataFile> source_;
  Cursor next_;
  std::optional<text::RecordReader> reader_;
  bool are_placed_ = true;  // compressed bytes have no places
  std::int64_t done_ = 0;
};

// A record with its context.
text::QuestionFile single(const ParsedBatch& batch, std::size_t index) {
  text::QuestionFile one;
  text::Question& record = one.questions.emplace_back(batch.questions->questions[index]);
  if (!record.is_record()) {
    one.contexts = {batch.questions->contexts[record.context]};
    record.context = 0;
  }
  record.id = place_of(record, batch.file->files);
  return one;
}

// Whether all files hold JSON lines as they are.
bool are_lines(const Source& source) {
  return std::all_of(
      source.file.files.begin(), source.file.files.end(), [&](const NamedBytes& file) {
        const text::DataBytes bytes{file.name};
        return record_reading_of(bytes, source.file.reading).container == text::Container::Lines &&
               !text::ByteSource(bytes).is_compressed();
      });
}

}  // namespace

std::unique_ptr<RecordSource> records_of(const Source& source, const Cursor& begin) {
  if (source.file.are_questions) {
    return std::make_unique<WholeSource>(source, begin);
  }
  if (are_lines(source)) {
    return lines_of(source, begin);
  }
  return std::make_unique<RecordStream>(source, begin);
}

std::map<std::int64_t, text::QuestionFile> records_at(const Source& source,
                                                      const std::set<std::int64_t>& numbers) {
  std::map<std::int64_t, text::QuestionFile> found;
  const std::unique_ptr<RecordSource> records = records_of(source, {});
  std::int64_t first = 0;
  while (found.size() < numbers.size()) {
    const std::optional<RecordBatch> next = records->next();
    if (!next) {
      break;
    }
    const ParsedBatch batch = next->parse();
    const auto end = first + static_cast<std::int64_t>(batch.end - batch.begin);
    for (auto number = numbers.lower_bound(first); number != numbers.lower_bound(end); ++number) {
      found[*number] = single(batch, batch.begin + static_cast<std::size_t>(*number - first));
    }
    first = end;
  }
  require_unchanged(source);
  return found;
}

}  // namespace llm::inputs
