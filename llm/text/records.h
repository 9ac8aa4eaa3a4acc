#pragma once
// Data of one's own: records with a prompt and a completion, conversations, Alpaca, texts,
// preference pairs; one a line (JSON lines), in an array, in a table or in a Parquet file.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llm/text/bad_sample.h"
#include "llm/text/questions.h"
#include "llm/text/record.h"
#include "llm/text/record_frames.h"
#include "llm/text/unread_fields.h"

namespace llm::text {

/// The names of the fields that are read.
struct Columns {
  std::string prompt = "prompt";
  std::string completion = "completion";
  std::string messages = "messages";  ///< of Chat; ShareGPT reads "conversations" instead of this
  std::string text = "text";
  std::string chosen = "chosen";      ///< of Preference, with an optional `prompt`
  std::string rejected = "rejected";  ///< the same
  bool operator==(const Columns&) const = default;
};

/// The kind of a record. Auto: each record's fields decide, but never for Preference.
enum class RecordKind { Auto, Chat, Sharegpt, Alpaca, PromptCompletion, Text, Preference };

/// How the records of a file are read.
struct RecordReading {
  Container container = Container::Lines;
  RecordKind kind = RecordKind::Auto;
  Columns columns = {};
  BadSamplePolicy bad = {};
  std::int64_t first_line = 1;  ///< of Lines within a file: the number of the first of them
};

/// Reads the records of a data file one by one. A record is bad if it is no JSON object in UTF-8 of
/// at most 16 MiB, nested at most 64 deep, if a field that is read is missing, there twice, of
/// another type or empty, or a conversation has a fault that chat_record.h names. Of prompts and
/// completions, other fields may hold NaN, Infinity and numbers beyond the range of double. Empty
/// lines are passed over. Memory: that of RecordFrames, and a record as JSON.
class RecordReader {
 public:
  /// Throws sherd::Error as open_frames() does, and BadData where the columns of a table are none
  /// that can be read.
  RecordReader(const DataBytes& file, RecordReading reading);

  /// The next good record: a conversation, or texts (of RecordKind::Text without a prompt). None at
  /// the end. Throws sherd::Error(BadData) where the file as a whole is bad, and where more records
  /// are bad than may be skipped.
  std::optional<Question> next();
  /// What the last record that next() gave holds.
  [[nodiscard]] RecordKind kind() const { return kind_; }
  /// The fields that were not read, of the records that next() has given since the last call.
  [[nodiscard]] UnreadFields take_unread() { return std::exchange(unread_, {}); }
  /// The bad records so far. Throws sherd::Error(BadData) that tells them where they may not be
  /// skipped.
  [[nodiscard]] std::vector<BadSample> skipped() && { return std::move(bad_).skipped(); }

 private:
  [[nodiscard]] RecordKind kind_of(const Record& record) const;
  [[nodiscard]] Record parsed(const std::string& text) const;
  void require_readable(const std::vector<std::string>& columns) const;
  void require_columns(const Record& record, RecordKind kind) const;
  [[nodiscard]] std::string missing_text(const std::string& column,
                                         const std::vector<std::string>& names) const;
  Question question_of(Record& record, RecordKind kind);
  [[nodiscard]] std::vector<std::string> columns_of(RecordKind kind) const;
  void add_bad(const RecordFrame& frame, const std::string& why, std::size_t byte);
  void count_unread(const Record& record, RecordKind kind, const std::string& place);

  std::string name_;
  RecordReading reading_;
  WantedFields wanted_;
  std::unique_ptr<RecordFrames> frames_;
  BadSamples bad_;
  RecordKind kind_ = RecordKind::Auto;
  UnreadFields unread_;
};

/// All records of a file. Memory: theirs.
[[nodiscard]] QuestionFile read_records(const DataBytes& file, const RecordReading& reading);

/// What a file's first good record holds, as far as the first 100 records tell; Auto where none of
/// them is good, and where the file is bad.
struct FirstRecord {
  RecordKind kind = RecordKind::Auto;
  bool is_conversation = false;
};
[[nodiscard]] FirstRecord first_record(const DataBytes& file, RecordReading reading);

/// Whether the first line of a file is a record of a kind that Auto knows by its fields.
[[nodiscard]] bool begins_with_record(const DataBytes& file);

}  // namespace llm::text
