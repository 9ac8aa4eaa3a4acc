#include "llm/inputs/record_source.h"

#include <algorithm>
#include <utility>

#include "llm/inputs/line_source.h"

namespace llm::inputs {

namespace {

// Records of a format that is parsed as a whole.
class WholeSource final : public RecordSource {
 public:
  WholeSource(const Source& source, const Cursor& begin)
      : file_(std::make_shared<data::DataFile>(whole_file(source))), next_(begin) {
    text::QuestionFile all = data::parse_data_file(*file_);
    skipped_ = std::exchange(all.skipped, {});
    questions_ = std::make_shared<text::QuestionFile>(std::move(all));
  }

  [[nodiscard]] std::int64_t total() const override { return count(); }
  [[nodiscard]] std::string unit() const override { return "samples"; }

  [[nodiscard]] std::optional<RecordBatch> next() override {
    constexpr std::int64_t kRecords = 128;
    const std::int64_t begin = next_.number - 1;
    if (begin >= count()) {
      return std::nullopt;
    }
    const std::int64_t end = std::min(begin + kRecords, count());
    RecordBatch batch{next_, end, [this, begin, end] {
                        return ParsedBatch{questions_,
                                           static_cast<std::size_t>(begin),
                                           static_cast<std::size_t>(end),
                                           begin == 0 ? skipped_ : std::vector<text::BadSample>(),
                                           file_,
                                           0};
                      }};
    ++next_.batch;
    next_.number = end + 1;
    return batch;
  }

 private:
  [[nodiscard]] std::int64_t count() const { return std::ssize(questions_->questions); }

  std::shared_ptr<const data::DataFile> file_;
  std::shared_ptr<const text::QuestionFile> questions_;
  std::vector<text::BadSample> skipped_;
  Cursor next_;
};

}  // namespace

std::unique_ptr<RecordSource> records_of(const Source& source, const Cursor& begin) {
  if (source.file.reading.format == config::DataFormat::Jsonl) {
    return lines_of(source, begin);
  }
  return std::make_unique<WholeSource>(source, begin);
}

}  // namespace llm::inputs
