#pragma once
// The records of a data file as text, one at a time, before anything of them is read.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llm/text/byte_source.h"

namespace llm::text {

/// How a data file holds its records.
enum class Container { Lines, Array, Csv, Tsv, Parquet };

/// The largest record.
inline constexpr std::size_t kMaxRecordBytes = std::size_t{16} << 20;

/// A record's text, an object of JSON if it is good, and where it stands in the decompressed file.
struct RecordFrame {
  std::int64_t number = 0;  ///< of the line, record or row, from 1
  std::int64_t line = 0;    ///< of its first byte, from 1; 0: the file has no lines
  std::int64_t begin_byte = 0, end_byte = 0;  ///< both 0: unknown
  std::string text = {};
  std::string fault = {};  ///< empty: none so far
};

/// Reads records in the order of their file. Memory: one record of at most kMaxRecordBytes, of
/// Parquet one page of each wanted column.
class RecordFrames {
 public:
  RecordFrames() = default;
  RecordFrames(const RecordFrames&) = delete;
  RecordFrames& operator=(const RecordFrames&) = delete;
  virtual ~RecordFrames() = default;

  /// None at the end. Throws sherd::Error(BadData) where the file as a whole is bad.
  virtual std::optional<RecordFrame> next() = 0;
  /// The names of all columns, where the file says them before its records.
  [[nodiscard]] virtual const std::vector<std::string>* columns() const { return nullptr; }
  /// What records are counted in: "line", "record" or "row".
  [[nodiscard]] virtual std::string unit() const = 0;
};

/// What a file is by the end of its name (.jsonl, .ndjson, .csv, .tsv, .parquet; before .gz and
/// .zst), else by its first bytes: Parquet's mark, or '[' for an array; lines otherwise. Throws
/// sherd::Error as ByteSource does.
[[nodiscard]] Container container_of(const DataBytes& file);

/// Opens a file. Of Parquet only the columns `wanted` are read. `first_line` is the number of the
/// first line where the bytes stand within a file. Throws sherd::Error as ByteSource
/// does, and BadData where the file is of another kind.
[[nodiscard]] std::unique_ptr<RecordFrames> open_frames(const DataBytes& file, Container container,
                                                        const std::vector<std::string>& wanted,
                                                        std::int64_t first_line = 1);

}  // namespace llm::text
