#pragma once
// Data in Parquet files: records, or questions as the hub's SQuAD has them.

#include <string>
#include <string_view>
#include <vector>

#include "llm/text/bad_sample.h"
#include "llm/text/questions.h"
#include "llm/text/records.h"

namespace llm::text {

/// Whether these are the first bytes of a Parquet file.
[[nodiscard]] bool is_parquet(std::string_view bytes);

/// Whether a file of these columns holds questions, not records.
[[nodiscard]] bool are_of_questions(const std::vector<std::string>& names, const Columns& columns);

/// Reads the bytes of `name`. A file with both of `columns` holds records; one with `question`,
/// `context` and `answers` questions: `answers` is a struct of the lists `text` and `answer_start`,
/// or a list of structs with these fields, and a question with an empty one has no answer (SQuAD
/// v2.0). Its `id` is that of the question, where there is one. A row is bad if a value is missing,
/// empty or of another type, or an answer is not where it says; bad rows are named with row and
/// column. Throws sherd::Error(BadData): for those, unless `policy` allows to skip them; a file
/// that cannot be read, or has other columns. A file without rows has no questions.
QuestionFile parse_parquet(const std::string& bytes, const std::string& name,
                           const Columns& columns, const BadSamplePolicy& policy);

}  // namespace llm::text
