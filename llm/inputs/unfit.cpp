#include "llm/inputs/unfit.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "files/mapped_file.h"
#include "llm/inputs/dataset.h"
#include "llm/text/squad.h"
#include "llm/text/utf8.h"
#include "sherd/error.h"

namespace llm::inputs {
namespace {

// Where a sample stands in the bytes of its file.
struct Place {
  std::string_view content;
  std::int64_t byte = 0;
  std::int64_t line = 1;
};

class Places {
 public:
  Places(const text::QuestionFile& questions, const std::vector<std::int64_t>& unfit,
         const DataFile& file)
      : file_(file) {
    if (file.reading.format != config::DataFormat::Squad) {
      return;
    }
    std::map<std::size_t, std::unordered_set<std::string>> ids;
    for (const std::int64_t index : unfit) {
      const text::Question& question = questions.questions[static_cast<std::size_t>(index)];
      ids[question.file].insert(question.id);
    }
    for (const auto& [number, of_file] : ids) {
      squad_[number] = text::squad_positions(file.files[number].bytes, of_file);
    }
  }

  // None in what is no text.
  [[nodiscard]] std::optional<Place> of(const text::Question& question) {
    const std::string_view bytes = bytes_of(question.file);
    if (question.end_byte > 0 && static_cast<std::size_t>(question.end_byte) <= bytes.size()) {
      const auto begin = static_cast<std::size_t>(question.begin_byte);
      const auto size = static_cast<std::size_t>(question.end_byte) - begin;
      return Place{bytes.substr(begin, size), question.begin_byte,
                   1 + std::count(bytes.begin(), bytes.begin() + question.begin_byte, '\n')};
    }
    const auto of_file = squad_.find(question.file);
    if (of_file == squad_.end() || !of_file->second.contains(question.id)) {
      return std::nullopt;
    }
    const text::JsonPosition& at = of_file->second.at(question.id);
    return Place{bytes.substr(at.begin_byte, at.end_byte - at.begin_byte),
                 static_cast<std::int64_t>(at.begin_byte), at.line};
  }

 private:
  // Those that were read, or those on the disk.
  std::string_view bytes_of(std::size_t number) {
    const NamedBytes& file = file_.files[number];
    if (!file.bytes.empty()) {
      return file.bytes;
    }
    const auto [mapped, is_new] = mapped_.try_emplace(number, file.name);
    return mapped->second.bytes();
  }

  const DataFile& file_;
  std::map<std::size_t, sherd::files::MappedFile> mapped_;
  // Of files, by their number: positions of questions by their ids.
  std::map<std::size_t, std::unordered_map<std::string, text::JsonPosition>> squad_;
};

// A record is known by its line or number, which its id tells: "line 3", or "line 3 of a.jsonl"; a
// question by its id.
text::BadSample named(const text::Question& question) {
  constexpr std::size_t kIdBytes = 1000;
  const std::string& id = question.id;
  const std::size_t blank = question.is_record() ? id.find(' ') : std::string::npos;
  if (blank == std::string::npos) {
    return {.unit = "question", .place = std::string(text::start_of(id, kIdBytes))};
  }
  return {.unit = id.substr(0, blank),
          .place = id.substr(blank + 1, id.find(' ', blank + 1) - blank - 1)};
}

std::string misfit(const text::QuestionFile& questions, std::size_t index,
                   const text::PromptEncoder& encoder) {
  try {
    static_cast<void>(encode_samples(questions, index, encoder));
  } catch (const sherd::Error& error) {
    return error.what();
  }
  return "does not fit";
}

}  // namespace

std::vector<text::BadSample> with_unfit(const text::QuestionFile& questions,
                                        const std::vector<std::int64_t>& unfit,
                                        const DataFile& file, const text::PromptEncoder& encoder) {
  const text::BadSamplePolicy& policy = file.reading.bad;
  std::vector<std::int64_t> told = unfit;
  if (!policy.skip) {
    told.resize(std::min(told.size(), text::FaultList::kMostTold));
  }
  Places places(questions, told, file);
  text::BadSamples bad(file.name, policy, questions.skipped);
  for (const std::int64_t index : told) {
    const auto at = static_cast<std::size_t>(index);
    const text::Question& question = questions.questions[at];
    text::BadSample sample = named(question);
    sample.source = file.files[question.file].name;
    sample.reason = misfit(questions, at, encoder);
    const auto place = places.of(question);
    if (place) {
      sample.byte = place->byte;
      if (sample.unit != "line") {
        sample.line = place->line;
      }
    }
    bad.add(std::move(sample), place ? place->content : std::string_view());
  }
  bad.add_untold(std::ssize(unfit) - std::ssize(told));
  return std::move(bad).skipped();
}

}  // namespace llm::inputs
