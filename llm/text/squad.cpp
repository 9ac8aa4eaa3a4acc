#include "llm/text/squad.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "llm/text/json_numbers.h"
#include "llm/text/json_positions.h"
#include "llm/text/printable.h"
#include "llm/text/utf8.h"
#include "sherd/error.h"

namespace llm::text {
namespace {

using nlohmann::json;

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

// A fault at a place of the file.
struct Fault {
  std::string place;  // a JSON pointer
  std::string what;
};

// Walks the file once and records every error. `place` is the JSON pointer of the current value.
class Reader {
 public:
  Reader(const std::string& name, const BadSamplePolicy& policy)
      : skips_(policy.skip), bad_(name, policy) {}

  QuestionFile read(const json& root) {
    if (expect(root.is_object(), "", "an object", root)) {
      each(root, "", "data", [&](const json& article, const std::string& at) {
        each(article, at, "paragraphs",
             [&](const json& paragraph, const std::string& where) { add(paragraph, where); });
      });
    }
    return std::move(file_);
  }

  [[nodiscard]] std::int64_t faults() const { return faults_; }
  /// The first of them.
  [[nodiscard]] const std::vector<Fault>& told() const { return told_; }
  /// How many are of what holds questions: nobody knows what is lost there.
  [[nodiscard]] std::int64_t faults_of_structure() const { return structure_; }
  [[nodiscard]] const std::vector<Fault>& told_of_structure() const { return told_of_structure_; }
  /// Where faults may be skipped, the questions that have some.
  [[nodiscard]] BadSamples& bad() { return bad_; }

 private:
  void fault(const std::string& place, const std::string& what) {
    ++faults_;
    tell(told_, place, what);
    if (!question_.empty()) {
      const std::size_t below = std::min(question_.size() + 1, place.size());
      blame_question(place.substr(below) + (below < place.size() ? " " : "") + what);
    } else if (is_context_) {
      context_fault_ = "its context " + what;
    } else {
      ++structure_;
      tell(told_of_structure_, place, what);
    }
  }

  static void tell(std::vector<Fault>& told, const std::string& place, const std::string& what) {
    if (told.size() < FaultList::kMostTold) {
      told.push_back({place, what});
    }
  }

  // A question with a fault is bad once, whatever else is wrong with it.
  void blame_question(const std::string& reason) {
    constexpr std::size_t kLongReason = 500;
    if (reasons_.size() < kLongReason) {
      reasons_ += (reasons_.empty() ? "" : "; ") + reason;
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
    if (!expect(paragraph.is_object(), place, "an object", paragraph)) {
      return;
    }
    is_context_ = true;
    const auto context = text(paragraph, place, "context");
    is_context_ = false;
    if (context) {
      file_.contexts.push_back(*context);
    }
    each(paragraph, place, "qas", [&](const json& qa, const std::string& at) {
      question_ = at;
      if (!context) {
        blame_question(context_fault_);
      }
      add_question(qa, at, context ? &*context : nullptr);
      question_.clear();
      if (!reasons_.empty() && skips_) {
        bad_.add({.unit = "place", .place = at, .reason = reasons_});
      }
      reasons_.clear();
    });
  }

  void add_question(const json& qa, const std::string& place, const std::string* context) {
    const auto id = text(qa, place, "id");
    if (!qa.is_object()) {
      return;
    }
    if (id) {
      const auto [first, is_new] = first_place_.emplace(*id, place);
      if (!is_new) {
        fault(place + "/id", in_quotes(*id) + " occurs twice, first at " + first->second + "/id");
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
    if (reasons_.empty() && answers.empty()) {
      fault(place + "/answers", "is empty: a question needs an answer");
    }
    if (reasons_.empty()) {
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
      fault(place + "/answers", "is not empty, and the question is marked as impossible");
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
        in_quotes(answer), start,
        in_quotes(std::string_view(context).substr(byte), std::min(answer.size(), kQuotedBytes)));
    const std::size_t found = context.find(answer);
    if (found == std::string::npos) {
      return what + "; the context does not contain it";
    }
    return fmt::format("{}; it first occurs at {}", what,
                       code_points(std::string_view(context).substr(0, found)));
  }

  static constexpr std::size_t kQuotedBytes = 40;

  bool skips_;
  QuestionFile file_;
  std::int64_t faults_ = 0;
  std::int64_t structure_ = 0;  // of those
  std::vector<Fault> told_;
  std::vector<Fault> told_of_structure_;
  BadSamples bad_;
  std::string question_;       // the place of the one that is being read; empty between them
  std::string reasons_;        // why it is bad; empty: it is good
  bool is_context_ = false;    // a paragraph's context is being read
  std::string context_fault_;  // of the last one that was bad
  std::unordered_map<std::string, std::string> first_place_;  // question id -> its place
};

}  // namespace

namespace {

json parse_whole(const std::string& bytes, const std::string& name) {
  try {
    return parse_data_json(bytes, name);
  } catch (const sherd::Error& error) {
    throw sherd::Error(error.code(), std::string(error.what()) +
                                         ". Read as SQuAD, one JSON object with `data`, since no "
                                         "other kind was recognised; give "
                                         "format = \"jsonl\" for one JSON object per line, "
                                         "\"json\" for an array of them, \"csv\" "
                                         "for a table; a plain text is a record {\"text\": …}");
  }
}

}  // namespace

namespace {

// The value, or what is nearest around it: a field that is missing stands nowhere.
const JsonPosition* position_of(const std::string& place,
                                const std::unordered_map<std::string, JsonPosition>& positions) {
  auto found = positions.find(place);
  if (found == positions.end()) {
    found = positions.find(place.substr(0, place.find_last_of('/')));
  }
  return found == positions.end() ? nullptr : &found->second;
}

std::string listed(const std::vector<Fault>& told, std::int64_t count, const std::string& bytes) {
  std::unordered_set<std::string> places;
  for (const Fault& fault : told) {
    places.insert({fault.place, fault.place.substr(0, fault.place.find_last_of('/'))});
  }
  const auto positions = json_positions(bytes, places);
  FaultList list;
  for (const Fault& fault : told) {
    const JsonPosition* at = position_of(fault.place, positions);
    list.add((fault.place.empty() ? "/" : fault.place) + ": " + fault.what +
             (at == nullptr ? "" : fmt::format(" (line {}, byte {})", at->line, at->begin_byte)));
  }
  list.add_untold(count - list.count());
  return list.text();
}

// Whether the first fault says that the file was never SQuAD's.
bool is_of_other_kind(const Reader& reader) {
  const Fault& first = reader.told().front();
  return first.what == "is missing" &&
         (first.place == "/data" || first.place == "/data/0/paragraphs");
}

[[noreturn]] void refuse(const std::string& bytes, const std::string& name, const Reader& reader,
                         const BadSamplePolicy& policy) {
  const std::int64_t structure = reader.faults_of_structure();
  const bool is_structure = policy.skip && structure > 0;
  const std::string list = is_structure ? listed(reader.told_of_structure(), structure, bytes)
                                        : listed(reader.told(), reader.faults(), bytes);
  const std::string advice =
      is_structure
          ? "\nOnly single questions can be skipped; here it is unknown what would be lost."
      : policy.skip              ? "\nNo question is good."
      : is_of_other_kind(reader) ? "\nRecords of another kind are one JSON object per line, or one "
                                   "array that is the whole file."
      : structure > 0            ? ""
                                 : advice_to_skip();
  throw sherd::Error(sherd::ExitCode::BadData, name + ": not a SQuAD file: " + list + advice);
}

// Bad questions once more, with where they stand and how they read.
std::vector<BadSample> with_positions(std::vector<BadSample> bad, const std::string& bytes,
                                      const std::string& name, const BadSamplePolicy& policy) {
  std::unordered_set<std::string> places;
  for (const BadSample& sample : bad) {
    places.insert(sample.place);
  }
  const auto positions = json_positions(bytes, places);
  BadSamples placed(name, policy);
  for (BadSample& sample : bad) {
    std::string_view content;
    if (const auto found = positions.find(sample.place); found != positions.end()) {
      const JsonPosition& at = found->second;
      sample.line = at.line;
      sample.byte = static_cast<std::int64_t>(at.begin_byte);
      content = std::string_view(bytes).substr(at.begin_byte, at.end_byte - at.begin_byte);
    }
    placed.add(std::move(sample), content);
  }
  return std::move(placed).skipped();
}

}  // namespace

std::unordered_map<std::string, JsonPosition> squad_positions(
    const std::string& bytes, const std::unordered_set<std::string>& ids) {
  const json root = parse_data_json(bytes, "");
  std::unordered_map<std::string, std::string> places;  // id -> its JSON pointer
  const json& articles = root.at("data");
  for (std::size_t a = 0; a < articles.size(); ++a) {
    const json& paragraphs = articles[a].at("paragraphs");
    for (std::size_t p = 0; p < paragraphs.size(); ++p) {
      const json& questions = paragraphs[p].at("qas");
      for (std::size_t q = 0; q < questions.size(); ++q) {
        const json id = questions[q].is_object() ? questions[q].value("id", json()) : json();
        if (id.is_string() && ids.contains(id.get<std::string>())) {
          places.emplace(id.get<std::string>(),
                         fmt::format("/data/{}/paragraphs/{}/qas/{}", a, p, q));
        }
      }
    }
  }
  std::unordered_set<std::string> pointers;
  for (const auto& [id, place] : places) {
    pointers.insert(place);
  }
  const auto found = json_positions(bytes, pointers);
  std::unordered_map<std::string, JsonPosition> positions;
  for (const auto& [id, place] : places) {
    if (const auto position = found.find(place); position != found.end()) {
      positions.emplace(id, position->second);
    }
  }
  return positions;
}

QuestionFile parse_squad(const std::string& bytes, const std::string& name,
                         const BadSamplePolicy& policy) {
  const json root = parse_whole(bytes, name);
  Reader reader(name, policy);
  QuestionFile file = reader.read(root);
  if (reader.faults() == 0) {
    return file;
  }
  if (!policy.skip || reader.faults_of_structure() > 0 || file.questions.empty()) {
    refuse(bytes, name, reader, policy);
  }
  file.skipped = with_positions(std::move(reader.bad()).skipped(), bytes, name, policy);
  return file;
}

}  // namespace llm::text
