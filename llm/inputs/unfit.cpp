#include "llm/inputs/unfit.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "files/mapped_file.h"
#include "llm/text/byte_source.h"
#include "llm/text/squad.h"
#include "llm/text/utf8.h"

namespace llm::inputs {
namespace {

// A record is known by its line or number, which its id tells: "line 3"; a question by its id.
text::BadSample named(const text::Question& record) {
  constexpr std::size_t kIdBytes = 1000;
  const std::size_t blank = record.is_record() ? record.id.find(' ') : std::string::npos;
  if (blank == std::string::npos) {
    return {.unit = "question", .place = std::string(text::start_of(record.id, kIdBytes))};
  }
  return {.unit = record.id.substr(0, blank), .place = record.id.substr(blank + 1)};
}

// Where the record stands in a file, if that is known.
void set_place(text::BadSample& sample, const text::Question& record, std::string_view bytes) {
  const auto begin = static_cast<std::size_t>(record.begin_byte);
  const auto end = static_cast<std::size_t>(record.end_byte);
  if (end == 0 || end > bytes.size()) {
    return;
  }
  sample.content = bytes.substr(begin, end - begin);
  sample.byte = record.begin_byte;
  if (sample.unit != "line") {
    sample.line = 1 + std::count(bytes.begin(), bytes.begin() + record.begin_byte, '\n');
  }
}

void set_place_of_question(text::BadSample& sample, const text::Question& question,
                           const std::string& bytes) {
  const auto positions = text::squad_positions(bytes, {question.id});
  if (const auto found = positions.find(question.id); found != positions.end()) {
    const text::JsonPosition& at = found->second;
    sample.content = bytes.substr(at.begin_byte, at.end_byte - at.begin_byte);
    sample.byte = static_cast<std::int64_t>(at.begin_byte);
    sample.line = at.line;
  }
}

}  // namespace

text::BadSample unfit_sample(const text::Question& record, const DataFile& file,
                             const std::string& why) {
  const NamedBytes& of = file.files[record.file];
  text::BadSample sample = named(record);
  sample.source = of.name;
  sample.reason = why;
  if (file.reading.format == config::DataFormat::Squad) {
    const auto all = std::numeric_limits<std::size_t>::max();
    set_place_of_question(sample, record, text::first_bytes({of.name, of.bytes}, all));
  } else {
    const sherd::files::MappedFile mapped(of.name);
    set_place(sample, record, mapped.bytes());
    sherd::files::require_mapped_files();
  }
  return sample;
}

}  // namespace llm::inputs
