#pragma once
// Question answering data in SQuAD's JSON.

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "llm/text/bad_sample.h"
#include "llm/text/json_positions.h"
#include "llm/text/questions.h"

namespace llm::text {

/// Reads the bytes of `name`, a SQuAD v1.1 or v2.0 file. Fields that are not needed (`title`,
/// `version`, `plausible_answers`, …) are ignored. A question that `is_impossible` has the answer
/// kNoAnswer. Throws sherd::Error(BadData) with line and column of a syntax error, or with every
/// other fault of the file (at most 20 are reported) by JSON pointer, such as
/// `/data/3/paragraphs/0/qas/2/id`, line and byte: a field that is missing, empty or of another
/// type, an answer that is not at `answer_start`, an id that occurs twice, answers of an impossible
/// question, a file without questions. Where `policy` allows to skip, each question that has a
/// fault, or whose context has one, is left out; what holds them must be right all the same.
/// Sources: Rajpurkar et al. 2016, arXiv:1606.05250; 2018, arXiv:1806.03822.
QuestionFile parse_squad(const std::string& bytes, const std::string& name,
                         const BadSamplePolicy& policy = {});

/// Where the questions with these ids stand, of a file that parse_squad() has read. Cost: that of
/// reading it once more.
[[nodiscard]] std::unordered_map<std::string, JsonPosition> squad_positions(
    const std::string& bytes, const std::unordered_set<std::string>& ids);

}  // namespace llm::text
