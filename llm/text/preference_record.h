#pragma once
// Preference pairs from the shapes in which records hold them.

#include <string>

#include "llm/text/questions.h"
#include "llm/text/record.h"

namespace llm::text {

/// The names of the fields of a pair.
struct PairFields {
  std::string prompt;  ///< need not be there
  std::string chosen;
  std::string rejected;
};

/// The pair of a record: the question with its preferred answer, and Question::rejected.
/// - Three texts; or two that begin alike: their prompt ends behind the last "\n\nAssistant:" of
///   the common text, else before the last word that differs in part.
/// - Lists of messages: a prompt and two continuations, or two whole conversations, whose common
///   messages are the prompt. A prompt that is a text is the user's. A prompt that both lists
///   repeat is not put before them again: a list as their beginning, a text as a user's message.
/// Throws RecordFault: fields that are missing, empty, of other types or equal; a prompt that only
/// one of the lists repeats, or a text that they neither repeat nor answer; lists without an
/// answer; all that conversation_of_list() refuses.
[[nodiscard]] Question pair_of(Record& record, const PairFields& fields);

}  // namespace llm::text
