#include "llm/text/squad.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "sherd/error.h"

namespace llm::text {
namespace {

using nlohmann::json;

constexpr std::size_t kQuotedBytes = 40;

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// The start of a text for a message, in quotes and on one line.
std::string excerpt(std::string_view text, std::size_t bytes = kQuotedBytes) {
  std::size_t end = std::min({text.size(), bytes, kQuotedBytes});
  while (end < text.size() && is_continuation(text[end])) {
    ++end;
  }
  return json(std::string(text.substr(0, end)) + (end < text.size() ? "…" : "")).dump();
}

// The byte at which code point `index` of a UTF-8 text starts; none beyond its end.
std::optional<std::size_t> byte_of(std::string_view text, std::uint64_t index) {
  std::uint64_t seen = 0;
  for (std::size_t byte = 0; byte < text.size(); ++byte) {
    if (!is_continuation(text[byte]) && seen++ == index) {
      return byte;
    }
  }
  return std::nullopt;
}

std::uint64_t code_points(std::string_view text) {
  std::uint64_t count = 0;
  for (const char byte : text) {
    count += is_continuation(byte) ? 0 : 1;
  }
  return count;
}

// Walks the file once and records every error. `place` is the JSON pointer of the current value.
class Reader {
 public:
  QuestionFile read(const json& root) {
    if (expect(root.is_object(), "", "an object", root)) {
      each(root, "", "data", [&](const json& article, const std::string& at) {
        each(article, at, "paragraphs",
             [&](const json& paragraph, const std::string& where) { add(paragraph, where); });
      });
    }
    if (faults_.empty() && file_.questions.empty()) {
      fault("", "contains no questions");
    }
    return std::move(file_);
  }

  [[nodiscard]] const std::vector<std::string>& faults() const { return faults_; }
  /// What the faults are of, each once: questions, and what holds them.
  [[nodiscard]] const std::vector<BadSample>& bad() const { return bad_; }

 private:
  void fault(const std::string& place, const std::string& what) {
    faults_.push_back((place.empty() ? "/" : place) + ": " + what);
    if (question_.empty()) {
      bad_.push_back({"", "place", place.empty() ? "/" : place, std::nullopt, what});
      return;
    }
    const std::size_t below = std::min(question_.size() + 1, place.size());
    const std::string reason = place.substr(below) + (below < place.size() ? " " : "") + what;
    if (of_this_question_) {
      bad_.back().reason += "; " + reason;
    } else {
      bad_.push_back({"", "place", question_, std::nullopt, reason});
      of_this_question_ = true;
    }
  }

  bool expect(bool right, const std::string& place, const std::string& wanted, const json& value) {
    if (!right) {
      fault(place, "should be " + wanted + ", is " + value.type_name());
    }
    return right;
  }

  // The field of an object; null, with an error recorded, if it is missing or this is not an
  // object.
  const json* field(const json& object, const std::string& place, const std::string& name) {
    if (!expect(object.is_object(), place, "an object", object)) {
      return nullptr;
    }
    const auto found = object.find(name);
    if (found == object.end()) {
      fault(place + "/" + name, "is missing");
      return nullptr;
    }
    return &*found;
  }

  template <typename Visit>
  void each(const json& object, const std::string& place, const std::string& name, Visit visit) {
    const json* list = field(object, place, name);
    const std::string list_place = place + "/" + name;
    if (list == nullptr || !expect(list->is_array(), list_place, "an array", *list)) {
      return;
    }
    for (std::size_t i = 0; i < list->size(); ++i) {
      visit((*list)[i], fmt::format("{}/{}", list_place, i));
    }
  }

  std::optional<std::string> text(const json& object, const std::string& place,
                                  const std::string& name) {
    const json* value = field(object, place, name);
    const std::string value_place = place + "/" + name;
    if (value == nullptr || !expect(value->is_string(), value_place, "a string", *value)) {
      return std::nullopt;
    }
    auto found = value->get<std::string>();
    if (found.find_first_not_of(" \t\r\n") == std::string::npos) {
      fault(value_place, "is empty");
      return std::nullopt;
    }
    return found;
  }

  void add(const json& paragraph, const std::string& place) {
    const auto context = text(paragraph, place, "context");
    if (context) {
      file_.contexts.push_back(*context);
    }
    each(paragraph, place, "qas", [&](const json& qa, const std::string& at) {
      question_ = at;
      add_question(qa, at, context ? &*context : nullptr);
      question_.clear();
      of_this_question_ = false;
    });
  }

  void add_question(const json& qa, const std::string& place, const std::string* context) {
    const std::size_t faults_before = faults_.size();
    const auto id = text(qa, place, "id");
    if (!qa.is_object()) {
      return;
    }
    if (id) {
      const auto [first, is_new] = first_place_.emplace(*id, place);
      if (!is_new) {
        fault(place + "/id", excerpt(*id) + " occurs twice, first at " + first->second + "/id");
      }
    }
    const auto question = text(qa, place, "question");
    const bool impossible = is_impossible(qa, place);
    std::vector<Answer> answers;
    if (impossible) {
      answers.push_back({std::string(kNoAnswer)});
    } else {
      each(qa, place, "answers", [&](const json& answer, const std::string& at) {
        if (auto read = read_answer(answer, at, context)) {
          answers.push_back(std::move(*read));
        }
      });
    }
    if (faults_.size() == faults_before && answers.empty() && context != nullptr) {
      fault(place + "/answers", "is empty: a question needs an answer");
    }
    if (faults_.size() == faults_before && context != nullptr) {
      file_.questions.push_back(
          {*id, *question, file_.contexts.size() - 1, std::move(answers), impossible});
    }
  }

  bool is_impossible(const json& qa, const std::string& place) {
    const json value = qa.value("is_impossible", json());
    if (!value.is_null() && !value.is_boolean()) {
      expect(false, place + "/is_impossible", "true or false", value);
    }
    if (value != true) {
      return false;
    }
    if (const json answers = qa.value("answers", json()); answers.is_array() && !answers.empty()) {
      fault(place + "/answers", "is not empty, and the question is said to be impossible");
    }
    return true;
  }

  std::optional<Answer> read_answer(const json& answer, const std::string& place,
                                    const std::string* context) {
    const auto answer_text = text(answer, place, "text");
    const json* start = answer.is_object() ? field(answer, place, "answer_start") : nullptr;
    const std::string start_place = place + "/answer_start";
    if (start == nullptr ||
        !expect(start->is_number_integer(), start_place, "an integer", *start) || !answer_text ||
        context == nullptr) {
      return std::nullopt;
    }
    const auto byte =
        start->is_number_unsigned() ? byte_of(*context, start->get<std::uint64_t>()) : std::nullopt;
    if (!byte) {
      fault(start_place, fmt::format("is {}, outside the context of {} characters", start->dump(),
                                     code_points(*context)));
      return std::nullopt;
    }
    if (context->compare(*byte, answer_text->size(), *answer_text) != 0) {
      fault(start_place, misplaced(*answer_text, *context, *byte, start->dump()));
      return std::nullopt;
    }
    return Answer{*answer_text, static_cast<std::int64_t>(*byte)};
  }

  static std::string misplaced(const std::string& answer, const std::string& context,
                               std::size_t byte, const std::string& start) {
    const std::string what = fmt::format(
        "the answer {} is not at character {} of the context, where the text reads {}",
        excerpt(answer), start, excerpt(std::string_view(context).substr(byte), answer.size()));
    const std::size_t found = context.find(answer);
    if (found == std::string::npos) {
      return what + "; the context does not contain it";
    }
    return fmt::format("{}; it first occurs at {}", what,
                       code_points(std::string_view(context).substr(0, found)));
  }

  QuestionFile file_;
  std::vector<std::string> faults_;
  std::vector<BadSample> bad_;
  std::string question_;           // the place of the one that is being read; empty between them
  bool of_this_question_ = false;  // the last of bad_ is
  std::unordered_map<std::string, std::string> first_place_;  // question id -> its place
};

}  // namespace

namespace {

json parse_whole(const std::string& bytes, const std::string& name) {
  try {
    return sherd::files::parse_json(bytes, name);
  } catch (const sherd::Error& error) {
    throw sherd::Error(error.code(),
                       std::string(error.what()) +
                           ". Read as SQuAD, one JSON object with `data`; give format = \"jsonl\" "
                           "or \"json\" for records with prompt and completion. CSV is not there "
                           "yet.");
  }
}

}  // namespace

QuestionFile parse_squad(const std::string& bytes, const std::string& name,
                         const BadSamplePolicy& policy) {
  const json root = parse_whole(bytes, name);
  Reader reader;
  QuestionFile file = reader.read(root);
  if (reader.faults().empty()) {
    return file;
  }
  if (!policy.skip || file.questions.empty()) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       name + ": not a SQuAD file: " + listed(reader.faults()));
  }
  file.skipped = reader.bad();
  for (BadSample& sample : file.skipped) {
    sample.source = name;
  }
  refuse_unless_skipped(file.skipped, name, policy);
  return file;
}

}  // namespace llm::text
