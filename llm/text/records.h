#pragma once
// Data of one's own: records with a prompt and a completion, one a line (JSON lines) or in an
// array.

#include <cstdint>
#include <string>
#include <string_view>

#include "llm/text/bad_sample.h"
#include "llm/text/questions.h"

namespace llm::text {

/// The names of the fields that hold a record's prompt and its completion.
struct Columns {
  std::string prompt = "prompt";
  std::string completion = "completion";
  bool operator==(const Columns&) const = default;
};

/// Reads the bytes of `name`: an object a line. Empty lines are passed over; a byte order mark, CR
/// before a line's end and a last line without an end are fine. A record is bad if it is no JSON
/// object in UTF-8 of at most 16 MiB, nested at most 64 deep, or one of its two columns is missing,
/// there twice, no string, or empty. A file without records has no questions. Throws
/// sherd::Error(BadData): bad records, unless `policy` allows to skip them; a file that holds an
/// array.
QuestionFile parse_jsonl(const std::string& bytes, const std::string& name, const Columns& columns,
                         const BadSamplePolicy& policy);

/// Reads whole lines from within a file, of which `first_line` is the first; bytes are counted from
/// its begin. Bad records are in `skipped`.
QuestionFile parse_jsonl_lines(std::string_view lines, const std::string& name,
                               std::int64_t first_line, const Columns& columns);

/// Reads an array of objects in the same way. Throws also where the array has no end, or something
/// follows it.
QuestionFile parse_json_records(const std::string& bytes, const std::string& name,
                                const Columns& columns, const BadSamplePolicy& policy);

}  // namespace llm::text
