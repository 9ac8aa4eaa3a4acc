#include "llm/inputs/data_file.h"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <unordered_map>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/input.h"
#include "files/mapped_file.h"
#include "files/other_kind.h"
#include "files/sha256.h"
#include "llm/text/byte_source.h"
#include "llm/text/conversation.h"
#include "llm/text/parquet.h"
#include "llm/text/parquet_rows.h"
#include "llm/text/printable.h"
#include "llm/text/squad.h"
#include "sherd/error.h"

namespace llm::inputs {
namespace {

namespace fs = std::filesystem;

// A file is held in memory, at about five times its size. SQuAD v1.1's has 30 MB.
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{4} << 30;
// A file that has only blanks there counts as empty.
constexpr std::size_t kHeadBytes = std::size_t{64} << 10;

// Whether a name is the pattern, in which a '*' stands for any characters.
bool matches(std::string_view name, std::string_view pattern) {
  std::size_t at = 0;
  std::size_t next = 0;
  std::size_t star = std::string_view::npos;  // the last one so far, which takes what is left over
  std::size_t after_star = 0;                 // of the name, where that begins
  while (at < name.size()) {
    if (next < pattern.size() && pattern[next] == '*') {
      star = next++;
      after_star = at;
    } else if (next < pattern.size() && pattern[next] == name[at]) {
      ++next;
      ++at;
    } else if (star != std::string_view::npos) {
      next = star + 1;
      at = ++after_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', next) == std::string_view::npos;
}

std::string name_in_folder(const std::string& path) {
  return fs::path(path).filename().string();
}

bool is_blank(std::string_view bytes) {
  return bytes.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

text::RecordKind kind_of(config::DataFormat format) {
  switch (format) {
    case config::DataFormat::Chat:
      return text::RecordKind::Chat;
    case config::DataFormat::Alpaca:
      return text::RecordKind::Alpaca;
    case config::DataFormat::Sharegpt:
      return text::RecordKind::Sharegpt;
    case config::DataFormat::PromptCompletion:
      return text::RecordKind::PromptCompletion;
    case config::DataFormat::Text:
      return text::RecordKind::Text;
    case config::DataFormat::Preference:
      return text::RecordKind::Preference;
    default:
      return text::RecordKind::Auto;
  }
}

text::Container container_of(const text::DataBytes& file, config::DataFormat format) {
  switch (format) {
    case config::DataFormat::Jsonl:
      return text::Container::Lines;
    case config::DataFormat::Json:
      return text::Container::Array;
    case config::DataFormat::Parquet:
      return text::Container::Parquet;
    case config::DataFormat::Csv:
      return text::without_compression(file.name).ends_with(".tsv") ? text::Container::Tsv
                                                                    : text::Container::Csv;
    default:
      return text::container_of(file);
  }
}

text::QuestionFile parsed(const NamedBytes& file, const FileReading& reading) {
  if (text::is_parquet(file.bytes)) {
    return text::parse_parquet(file.bytes, file.name, reading.columns, reading.bad);
  }
  const text::DataBytes source{file.name, file.bytes};
  if (text::ByteSource(source).is_compressed()) {
    return text::parse_squad(text::first_bytes(source, kMaxFileBytes), file.name, reading.bad);
  }
  return text::parse_squad(file.bytes, file.name, reading.bad);
}

// What is recognised of a file without its format being given: the kind of its records decides,
// except of prompts and completions, whose format is that of the file.
config::DataFormat recognised(config::DataFormat format, text::RecordKind kind) {
  switch (kind) {
    case text::RecordKind::Chat:
      return config::DataFormat::Chat;
    case text::RecordKind::Alpaca:
      return config::DataFormat::Alpaca;
    case text::RecordKind::Sharegpt:
      return config::DataFormat::Sharegpt;
    case text::RecordKind::Text:
      return config::DataFormat::Text;
    default:
      return format;
  }
}

std::string kind_text(const text::FirstRecord& first, const text::Columns& columns) {
  switch (first.kind) {
    case text::RecordKind::Chat:
      return fmt::format("chat (`{}`)", columns.messages);
    case text::RecordKind::Alpaca:
      return "alpaca (`instruction`, `input`, `output`)";
    case text::RecordKind::Sharegpt:
      return "sharegpt (`conversations`)";
    case text::RecordKind::Text:
      return fmt::format("text (`{}`, learned as a whole)", columns.text);
    default:
      return fmt::format("prompt_completion (`{}`, `{}`{})", columns.prompt, columns.completion,
                         first.is_conversation ? ", lists of messages" : "");
  }
}

bool is_questions(const std::string& file, const FileReading& reading) {
  if (reading.format != config::DataFormat::Parquet) {
    return reading.format == config::DataFormat::Squad;
  }
  try {
    const sherd::files::MappedFile mapped(file);
    return text::are_of_questions(text::ParquetRows(mapped.bytes(), file, {}).columns(),
                                  reading.columns);
  } catch (const sherd::Error&) {
    return true;  // reading it will tell
  }
}

// Looks at the first record: sets a format that was left out, and the note.
void recognise(DataFile& all) {
  if (all.are_questions) {
    all.note = "squad (questions about contexts)";
    return;
  }
  for (const NamedBytes& file : all.files) {
    const text::DataBytes source{file.name};
    const text::FirstRecord first =
        text::first_record(source, record_reading_of(source, all.reading));
    if (first.kind == text::RecordKind::Auto) {
      continue;  // it has none
    }
    all.note = kind_text(first, all.reading.columns);
    all.reading.format = recognised(all.reading.format, first.kind);
    return;
  }
}

// Arrow files, as `datasets` keeps them, have a way to Parquet; other folders hold files to name.
void refuse_folder(const fs::path& path) {
  std::error_code none_there;
  const bool is_any_folder = fs::is_directory(path, none_there);
  const bool is_folder = is_any_folder && (fs::exists(path / "dataset_info.json", none_there) ||
                                           fs::exists(path / "dataset_dict.json", none_there) ||
                                           fs::exists(path / "state.json", none_there));
  if (!is_folder && path.extension() != ".arrow") {
    if (is_any_folder) {
      throw sherd::Error(
          sherd::ExitCode::BadData,
          fmt::format("{0}: expected a regular file, found a folder. Name its files: {0}/*.jsonl",
                      path.string()));
    }
    return;
  }
  const fs::path folder = is_folder ? path : path.parent_path();
  const bool has_splits = fs::exists(folder / "dataset_dict.json", none_there);
  throw sherd::Error(
      sherd::ExitCode::BadData,
      fmt::format("{}: Arrow data that save_to_disk wrote. Write it as Parquet: python3 -c 'from "
                  "datasets import load_from_disk; load_from_disk(\"{}\"){}.to_parquet("
                  "\"data.parquet\")'",
                  path.string(), folder.string(), has_splits ? "[\"train\"]" : ""));
}

// Whether a question's id is its place in the file: "line 3".
bool is_place(const text::Question& question) {
  constexpr std::string_view kRow = "row ";  // of a Parquet file without ids
  const std::string_view id = question.id;
  return question.is_record() ||
         (id.starts_with(kRow) &&
          id.find_first_not_of("0123456789", kRow.size()) == std::string_view::npos);
}

// Of several files some may be empty; the data set may not.
void require_questions(const text::QuestionFile& file, const DataFile& source) {
  if (!file.questions.empty()) {
    return;
  }
  const std::string unit =
      source.reading.format == config::DataFormat::Parquet ? "row" : "question";
  throw sherd::Error(sherd::ExitCode::BadData,
                     file.skipped.empty()
                         ? fmt::format("{}: contains no {}s", source.name, unit)
                         : fmt::format("{}: contains no good {}; the first: {}", source.name, unit,
                                       file.skipped.front().text()));
}

void require_side(text::QuestionFile& file, const DataFile& source) {
  const std::int64_t others = keep_side(file, source.reading);
  if (file.questions.empty()) {
    refuse_empty_side(source, others);
  }
}

// The questions of several files as those of one.
class JoinedQuestions {
 public:
  explicit JoinedQuestions(const DataFile& file) : bad_(file.name, file.reading.bad) {}

  void add(text::QuestionFile part, const std::string& name) {
    const std::size_t number = files_.size();
    const std::size_t contexts = all_.contexts.size();
    files_.push_back(name);
    part.unread.place_in(name_in_folder(name));
    all_.unread.add(part.unread);
    std::move(part.contexts.begin(), part.contexts.end(), std::back_inserter(all_.contexts));
    for (text::BadSample& sample : part.skipped) {
      const std::string content = std::move(sample.content);
      bad_.add(std::move(sample), content);
    }
    for (text::Question& question : part.questions) {
      question.file = number;
      question.context += question.is_record() ? 0 : contexts;
      if (!is_place(question) && is_taken(question)) {
        continue;
      }
      all_.questions.push_back(std::move(question));
    }
  }

  text::QuestionFile finish() && {
    all_.skipped = std::move(bad_).skipped();
    return std::move(all_);
  }

 private:
  bool is_taken(const text::Question& question) {
    const auto [first, is_new] = first_file_.emplace(question.id, question.file);
    if (!is_new) {
      bad_.add({.source = files_.back(),
                .unit = "question",
                .place = question.id,
                .reason = "a question of " + text::printable(files_[first->second]) +
                          " has the same id"});
    }
    return !is_new;
  }

  text::QuestionFile all_;
  text::BadSamples bad_;
  std::vector<std::string> files_;
  std::unordered_map<std::string, std::size_t> first_file_;  // id -> index in files_
};

// Empty without a conversation.
std::string conversation_text(const text::Question& question) {
  if (!question.conversation) {
    return "";
  }
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  return question.conversation->messages.dump(-1, ' ', false, kReplace) +
         question.conversation->tools.dump(-1, ' ', false, kReplace);
}

}  // namespace

text::RecordReading record_reading_of(const text::DataBytes& file, const FileReading& reading) {
  return {.container = container_of(file, reading.format),
          .kind = kind_of(reading.format),
          .columns = reading.columns,
          .bad = reading.bad};
}

std::string place_of(const text::Question& record, const std::vector<NamedBytes>& files) {
  return files.size() > 1 && is_place(record)
             ? record.id + " of " + name_in_folder(files[record.file].name)
             : record.id;
}

std::int64_t keep_side(text::QuestionFile& file, const FileReading& reading) {
  if (reading.side == Side::All) {
    return 0;
  }
  return static_cast<std::int64_t>(
      std::erase_if(file.questions, [&](const text::Question& question) {
        const std::string_view context =
            question.is_record() ? std::string_view() : file.contexts[question.context];
        return is_held_out(question, context, reading.held_out) != (reading.side == Side::HeldOut);
      }));
}

void refuse_empty_side(const DataFile& source, std::int64_t all) {
  const bool is_held_out = source.reading.side == Side::HeldOut;
  throw sherd::Error(
      sherd::ExitCode::BadData,
      fmt::format("{}: data.held_out leaves no sample to {} (the data has {}): {}", source.name,
                  is_held_out ? "evaluate" : "train on", text::counted(all, "sample"),
                  is_held_out ? "raise it, give more samples, or remove it (0)" : "lower it"));
}

config::DataFormat format_of(const text::DataBytes& file) {
  switch (text::container_of(file)) {
    case text::Container::Parquet:
      return config::DataFormat::Parquet;
    case text::Container::Array:
      return config::DataFormat::Json;
    case text::Container::Csv:
    case text::Container::Tsv:
      return config::DataFormat::Csv;
    default:
      break;
  }
  const std::string_view plain = text::without_compression(file.name);
  const bool is_named = plain.ends_with(".jsonl") || plain.ends_with(".ndjson");
  return is_named || text::begins_with_record(file) ? config::DataFormat::Jsonl
                                                    : config::DataFormat::Squad;
}

std::vector<std::string> files_of(const fs::path& path) {
  const std::string pattern = path.filename().string();
  std::error_code none_there;
  if (pattern.find('*') == std::string::npos || fs::exists(path, none_there)) {
    return {path.string()};
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder, none_there)) {
    const std::string name = entry.path().filename().string();
    const bool is_hidden = name.starts_with('.') && !pattern.starts_with('.');
    std::error_code ignored;
    if (matches(name, pattern) && !is_hidden && !entry.is_directory(ignored)) {
      files.push_back((path.parent_path() / name).string());
    }
  }
  if (files.empty()) {
    throw sherd::Error(
        sherd::ExitCode::InputMissing,
        fmt::format("{}: no file in {} has such a name", path.string(), folder.string()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::optional<std::string> pattern_of(const std::vector<std::string>& files) {
  const fs::path folder = fs::path(files.front()).parent_path();
  std::string begin = name_in_folder(files.front());
  std::string end = begin;
  for (const std::string& file : files) {
    const std::string name = name_in_folder(file);
    begin.erase(std::mismatch(begin.begin(), begin.end(), name.begin(), name.end()).first,
                begin.end());
    const auto differ = std::mismatch(end.rbegin(), end.rend(), name.rbegin(), name.rend()).first;
    end.erase(end.begin(), differ.base());
  }
  std::size_t shortest = begin.size() + end.size();
  for (const std::string& file : files) {
    shortest = std::min(shortest, name_in_folder(file).size());
  }
  begin.resize(std::min(begin.size(), shortest - std::min(shortest, end.size())));
  const std::string pattern = (folder / (begin + "*" + end)).string();
  std::vector<std::string> in_order = files;
  std::sort(in_order.begin(), in_order.end());
  std::error_code none_there;
  const bool is_file = fs::exists(pattern, none_there);
  return !is_file && files_of(pattern) == in_order ? std::optional(pattern) : std::nullopt;
}

DataFile find_data_file(const fs::path& path, const FileReading& reading) {
  refuse_folder(path);
  DataFile all{path.string(), {}, {}, reading};
  for (const std::string& name : files_of(path)) {
    all.files.push_back({name, {}});
    const config::DataFormat format = format_of({name});
    const std::string head = text::first_bytes({name}, kHeadBytes);
    if (format != config::DataFormat::Parquet) {
      sherd::files::refuse_archive(name, head);
      sherd::files::refuse_utf16(name, head);
    }
    const bool has_format = !is_blank(head) || format == config::DataFormat::Parquet;
    if (reading.format != config::DataFormat::Auto || !has_format) {
      continue;
    }
    if (all.reading.format != config::DataFormat::Auto && format != all.reading.format) {
      throw sherd::Error(sherd::ExitCode::BadData,
                         fmt::format("{}: {} is of another format than {}: give each format its "
                                     "own data set, or set `format` for all files",
                                     all.name, name, all.files.front().name));
    }
    all.reading.format = format;
  }
  if (all.reading.format == config::DataFormat::Auto) {  // all are empty
    all.reading.format = format_of({all.files.front().name});
  }
  all.are_questions = is_questions(all.files.front().name, all.reading);
  if (reading.format == config::DataFormat::Auto) {
    recognise(all);
  }
  return all;
}

DataFile read_data_file(const fs::path& path, const FileReading& reading) {
  DataFile all = find_data_file(path, reading);
  std::string digests;
  for (NamedBytes& file : all.files) {
    file.bytes = sherd::files::read_file(file.name, kMaxFileBytes);
    digests += sherd::files::sha256_of(file.bytes);
  }
  all.sha256 = all.files.size() > 1 ? sherd::files::sha256_of(digests) : digests;
  return all;
}

bool is_held_out(const text::Question& question, std::string_view context, double share) {
  std::string sample = question.question;
  sample += '\0';
  sample += context;
  for (const text::Answer& answer : question.answers) {
    sample += '\0' + answer.text;
  }
  sample += conversation_text(question);
  if (question.rejected) {
    for (const text::Answer& answer : question.rejected->answers) {
      sample += '\0' + answer.text;
    }
    sample += conversation_text(*question.rejected);
  }
  constexpr std::size_t kDigits = 13;  // 52 bits, which a double holds
  constexpr int kHexadecimal = 16;
  const double number = static_cast<double>(
      std::stoll(sherd::files::sha256_of(sample).substr(0, kDigits), nullptr, kHexadecimal));
  return number < share * static_cast<double>(std::int64_t{1} << (4 * kDigits));
}

text::QuestionFile parse_questions(const DataFile& file) {
  if (file.files.size() == 1) {
    text::QuestionFile one = parsed(file.files.front(), file.reading);
    require_questions(one, file);
    require_side(one, file);
    return one;
  }
  JoinedQuestions joined(file);
  for (const NamedBytes& one : file.files) {
    const bool is_empty = is_blank(one.bytes) && file.reading.format != config::DataFormat::Parquet;
    joined.add(is_empty ? text::QuestionFile{} : parsed(one, file.reading), one.name);
  }
  text::QuestionFile all = std::move(joined).finish();
  require_questions(all, file);
  require_side(all, file);
  return all;
}

}  // namespace llm::inputs
