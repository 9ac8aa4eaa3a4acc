#include "llm/text/records.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "llm/text/chat_record.h"
#include "llm/text/conversation.h"
#include "llm/text/json_numbers.h"
#include "llm/text/preference_record.h"
#include "llm/text/printable.h"
#include "sherd/error.h"

namespace llm::text {

namespace {

constexpr const char* kConversations = "conversations";
constexpr const char* kInstruction = "instruction";
constexpr const char* kOutput = "output";

std::string_view without_space_at_end(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

bool has(const Record& record, const std::string& name) {
  return record.fields.contains(name);
}

// Every field that may be read, whatever the record turns out to be.
std::vector<std::string> wanted_of(const Columns& columns) {
  std::vector<std::string> wanted = {
      columns.messages, kConversations, columns.prompt, columns.completion, kInstruction,
      kOutput,          "input",        "history",      "system",           "tools",
      "functions",      columns.text,   columns.chosen, columns.rejected};
  const auto learned = fields_of_what_is_learned();
  wanted.insert(wanted.end(), learned.begin(), learned.end());
  return wanted;
}

WantedFields wanted_fields(const Columns& columns) {
  const std::vector<std::string> names = wanted_of(columns);
  return {{names.begin(), names.end()},
          {columns.messages, kConversations, columns.prompt, columns.completion, columns.chosen,
           columns.rejected}};
}

// Of a conversation: what other trainers take for a mask of its turns.
void refuse_mask(const Record& record, const std::vector<std::string>& read) {
  for (const std::string_view name : fields_of_what_is_learned()) {
    const auto found = record.fields.find(name);
    if (found == record.fields.end() || found->is_null() || *found == "" ||
        std::find(read.begin(), read.end(), name) != read.end()) {
      continue;
    }
    throw RecordFault{fmt::format(
        "{} of a record is not read: remove it, and write \"weight\": 0 in each message of "
        "\"messages\" that is context, 1 in each that is learned",
        in_quotes(std::string(name)))};
  }
}

}  // namespace

RecordReader::RecordReader(const DataBytes& file, RecordReading reading)
    : name_(file.name),
      reading_(std::move(reading)),
      wanted_(wanted_fields(reading_.columns)),
      frames_(
          open_frames(file, reading_.container, wanted_of(reading_.columns), reading_.first_line)),
      bad_(name_, reading_.bad) {
  if (const std::vector<std::string>* columns = frames_->columns()) {
    require_readable(*columns);
  }
}

std::vector<std::string> RecordReader::columns_of(RecordKind kind) const {
  switch (kind) {
    case RecordKind::Chat:
      return {reading_.columns.messages};
    case RecordKind::Sharegpt:
      return {kConversations};
    case RecordKind::Alpaca:
      return {kInstruction, kOutput};
    case RecordKind::Text:
      return {reading_.columns.text};
    case RecordKind::Preference:
      return {reading_.columns.chosen, reading_.columns.rejected};
    default:
      return {reading_.columns.prompt, reading_.columns.completion};
  }
}

// Of a table: whether a record of it can be any that is wanted.
void RecordReader::require_readable(const std::vector<std::string>& columns) const {
  Record names;
  names.names = columns;
  for (const std::string& column : columns) {
    names.fields[column] = nullptr;
  }
  if (columns.empty()) {
    return;  // a file without records, which is told so
  }
  try {
    require_columns(names, reading_.kind == RecordKind::Auto ? kind_of(names) : reading_.kind);
  } catch (const RecordFault& fault) {
    const bool has_semicolons = columns.size() == 1 && columns[0].find(';') != std::string::npos;
    throw sherd::Error(
        sherd::ExitCode::BadData,
        name_ + ": " + fault.why +
            (has_semicolons
                 ? "; they are separated by ';': save it with commas, or as .tsv with tabs"
                 : ""));
  }
}

RecordKind RecordReader::kind_of(const Record& record) const {
  const Columns& columns = reading_.columns;
  const bool has_both = has(record, columns.prompt) && has(record, columns.completion);
  const bool are_named =
      columns.prompt != Columns().prompt || columns.completion != Columns().completion;
  if (are_named && has_both) {
    return RecordKind::PromptCompletion;
  }
  if (has(record, columns.messages)) {
    return RecordKind::Chat;
  }
  if (has(record, kConversations)) {
    return RecordKind::Sharegpt;
  }
  if (has_both || has(record, columns.prompt) || has(record, columns.completion)) {
    return RecordKind::PromptCompletion;
  }
  if (has(record, kInstruction) && has(record, kOutput)) {
    return RecordKind::Alpaca;
  }
  return has(record, columns.text) ? RecordKind::Text : RecordKind::PromptCompletion;
}

std::string RecordReader::missing_text(const std::string& column,
                                       const std::vector<std::string>& names) const {
  if (reading_.kind == RecordKind::Preference) {
    return fmt::format(
        "has no {}; its columns are {}: a preference pair has \"chosen\", \"rejected\" and mostly "
        "\"prompt\"; name them with columns = {{ chosen = \"…\", rejected = \"…\" }}",
        in_quotes(column), names_text(names));
  }
  const bool are_pairs = std::find(names.begin(), names.end(), "chosen") != names.end();
  const std::string others =
      reading_.kind == RecordKind::Auto || reading_.kind == RecordKind::PromptCompletion
          ? ": name them with columns = { prompt = \"…\", completion = \"…\" }"
          : "";
  const bool are_named = !(reading_.columns == Columns());
  const std::string kinds =
      reading_.kind == RecordKind::Auto && !are_named
          ? "; other kinds have \"messages\" (or columns = { messages = \"…\" }), "
            "\"conversations\", \"instruction\" and \"output\", or \"text\""
          : "";
  const std::string pairs =
      are_pairs
          ? "; preference pairs need train.objective = \"dpo\"; to train on \"chosen\" alone, "
            "name it as the completion"
          : "";
  return fmt::format("has no {}; its columns are {}{}{}{}", in_quotes(column), names_text(names),
                     others, kinds, pairs);
}

void RecordReader::require_columns(const Record& record, RecordKind kind) const {
  for (const std::string& column : columns_of(kind)) {
    if (!has(record, column)) {
      throw RecordFault{missing_text(column, record.names)};
    }
    if (kind == RecordKind::PromptCompletion && !frames_->columns()) {
      const auto& value = record.fields[column];
      if (!value.is_string() && !value.is_array()) {
        throw RecordFault{
            fmt::format("{} should be a string, is {}", in_quotes(column), value.type_name())};
      }
    }
  }
}

Record RecordReader::parsed(const std::string& text) const {
  Record record = read_record(text, wanted_);
  if (!record.fault.starts_with("not JSON")) {
    return record;
  }
  const auto finite = with_finite_numbers(text);
  if (!finite) {
    return record;
  }
  // Python and Arrow write such numbers into columns that are not read.
  Record second = read_record(*finite, wanted_);
  const RecordKind kind = reading_.kind == RecordKind::Auto ? kind_of(second) : reading_.kind;
  return kind == RecordKind::PromptCompletion || kind == RecordKind::Preference ? second : record;
}

Question RecordReader::question_of(Record& record, RecordKind kind) {
  require_columns(record, kind);
  const Columns& columns = reading_.columns;
  Question question;
  const auto set_conversation = [&](Conversation conversation) {
    refuse_mask(record, columns_of(kind));
    question.conversation = std::make_shared<const Conversation>(std::move(conversation));
  };
  if (kind == RecordKind::Chat || kind == RecordKind::Sharegpt) {
    set_conversation(conversation_of_list(record, columns_of(kind).front()));
  } else if (kind == RecordKind::Alpaca) {
    set_conversation(conversation_of_alpaca(record));
  } else if (kind == RecordKind::Preference) {
    refuse_mask(record, columns_of(kind));
    question = pair_of(record, {columns.prompt, columns.chosen, columns.rejected});
  } else if (kind == RecordKind::Text) {
    question.answers = {{text_field(record, columns.text)}};
  } else if (record.fields[columns.prompt].is_array() &&
             record.fields[columns.completion].is_array()) {
    set_conversation(conversation_of_prompt(record, columns.prompt, columns.completion));
  } else {
    question.question = text_field(record, columns.prompt);
    question.answers = {{text_field(record, columns.completion)}};
  }
  return question;
}

void RecordReader::count_unread(const Record& record, RecordKind kind, const std::string& place) {
  std::vector<std::string> read = columns_of(kind);
  if (kind != RecordKind::Text) {
    const std::string& of_messages =
        kind == RecordKind::Preference ? reading_.columns.chosen : reading_.columns.prompt;
    const bool is_conversation =
        (kind != RecordKind::PromptCompletion && kind != RecordKind::Preference) ||
        record.fields[of_messages].is_array();
    for (const char* name : {"system", "tools", "functions"}) {
      if (is_conversation) {
        read.emplace_back(name);
      }
    }
  }
  if (kind == RecordKind::Preference) {
    read.push_back(reading_.columns.prompt);
  }
  if (kind == RecordKind::Alpaca) {
    read.insert(read.end(), {"input", "history"});
  }
  std::set<std::string_view> told(read.begin(), read.end());
  const std::vector<std::string>* all = frames_->columns();
  for (const std::string& name : all != nullptr ? *all : record.names) {
    if (told.insert(name).second) {
      unread_.add(name, place);
    }
  }
  for (const auto& [list, name] : record.unread) {
    if (std::find(read.begin(), read.end(), list) != read.end()) {
      unread_.add(list + "." + name, place);
    }
  }
}

void RecordReader::add_bad(const RecordFrame& frame, const std::string& why, std::size_t byte) {
  const std::string unit = frames_->unit();
  BadSample bad{.unit = unit, .place = std::to_string(frame.number), .reason = why};
  if (frame.end_byte > 0) {
    bad.byte = frame.begin_byte + static_cast<std::int64_t>(byte);
  }
  if (frame.line > 0 && unit != "line") {
    const std::string_view before = std::string_view(frame.text).substr(0, byte);
    bad.line = frame.line + std::count(before.begin(), before.end(), '\n');
  }
  bad_.add(std::move(bad), without_space_at_end(frame.text));
}

std::optional<Question> RecordReader::next() {
  while (auto frame = frames_->next()) {
    if (!frame->fault.empty()) {
      add_bad(*frame, frame->fault, 0);
      continue;
    }
    Record record = parsed(frame->text);
    if (!record.fault.empty()) {
      // A table's JSON is made here: places in it are none of the file.
      add_bad(*frame, record.fault, frames_->columns() == nullptr ? record.fault_byte : 0);
      continue;
    }
    const RecordKind kind = reading_.kind == RecordKind::Auto ? kind_of(record) : reading_.kind;
    try {
      Question question = question_of(record, kind);
      kind_ = kind;
      question.id = frames_->unit() + " " + std::to_string(frame->number);
      count_unread(record, kind, question.id);
      question.begin_byte = frame->begin_byte;
      const std::size_t after = frame->text.size() - without_space_at_end(frame->text).size();
      question.end_byte = frame->end_byte - static_cast<std::int64_t>(after);
      return question;
    } catch (const RecordFault& fault) {
      add_bad(*frame, fault.why, 0);
    }
  }
  return std::nullopt;
}

QuestionFile read_records(const DataBytes& file, const RecordReading& reading) {
  RecordReader reader(file, reading);
  QuestionFile all;
  while (auto question = reader.next()) {
    all.questions.push_back(std::move(*question));
  }
  all.unread = reader.take_unread();
  all.skipped = std::move(reader).skipped();
  return all;
}

FirstRecord first_record(const DataBytes& file, RecordReading reading) {
  constexpr std::int64_t kMostBad = 100;
  reading.bad = {.skip = true, .most_skipped = kMostBad};
  try {
    RecordReader reader(file, reading);
    if (const auto question = reader.next()) {
      return {reader.kind(), question->conversation != nullptr};
    }
  } catch (const sherd::Error&) {
    // Reading the file will tell it.
  }
  return {};
}

bool begins_with_record(const DataBytes& file) {
  try {
    RecordReader reader(file, {.bad = {.skip = true, .most_skipped = 0}});
    return reader.next().has_value();
  } catch (const sherd::Error&) {
    return false;
  }
}

}  // namespace llm::text
