#pragma once
// The records of a data source, in batches that are parsed and encoded one by one.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "llm/inputs/data_file.h"
#include "llm/inputs/source.h"
#include "llm/text/questions.h"

namespace llm::inputs {

/// Where a batch begins.
struct Cursor {
  std::int64_t batch = 0;   ///< its number
  std::int64_t file = 0;    ///< in which it begins
  std::int64_t byte = 0;    ///< of that file
  std::int64_t number = 1;  ///< of its first line there, or record of all
};

/// Parsed records of the source's side: those from `begin` to `end` of `questions` are the batch's.
struct ParsedBatch {
  std::shared_ptr<const text::QuestionFile> questions;  ///< bad records in `skipped`
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<text::BadSample> skipped = {};
  std::shared_ptr<const DataFile> file;  ///< with bytes of questions
  std::int64_t others = 0;               ///< records of the other side
  text::UnreadFields unread = {};        ///< of records of both sides
};

/// A batch that any thread may parse.
struct RecordBatch {
  Cursor cursor;
  std::int64_t done = 0;  ///< of the whole source, at its end
  std::function<ParsedBatch()> parse;
};

/// Reads a source from a cursor on.
class RecordSource {
 public:
  RecordSource() = default;
  RecordSource(const RecordSource&) = delete;
  RecordSource& operator=(const RecordSource&) = delete;
  virtual ~RecordSource() = default;
  /// The next batch; none at the end. Throws sherd::Error: StorageIo, BadData.
  [[nodiscard]] virtual std::optional<RecordBatch> next() = 0;
  /// What RecordBatch::done counts up to; 0: unknown.
  [[nodiscard]] virtual std::int64_t total() const = 0;
  /// What that is counted in: "samples", "records" or "KB".
  [[nodiscard]] virtual std::string unit() const = 0;
};

/// Opens a source at a cursor. JSON lines are parsed by many threads, other records by the reader;
/// questions about contexts are read as a whole.
/// Throws sherd::Error as read_data_file() and parse_questions().
[[nodiscard]] std::unique_ptr<RecordSource> records_of(const Source& source, const Cursor& begin);

/// Good records of the source's side by their numbers (TokenStore::record()), each in a file of its
/// own with its context. Its id is its place, as place_of(). Reads the source up to the last
/// of them. Throws as records_of(), and sherd::Error(BadData) if a file has changed since the
/// source was opened.
[[nodiscard]] std::map<std::int64_t, text::QuestionFile> records_at(
    const Source& source, const std::set<std::int64_t>& numbers);

}  // namespace llm::inputs
