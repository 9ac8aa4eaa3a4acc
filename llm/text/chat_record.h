#pragma once
// Conversations from the shapes in which records hold them.

#include <string>

#include <nlohmann/json.hpp>

#include "llm/text/conversation.h"
#include "llm/text/record.h"

namespace llm::text {

/// Why a record is bad, as its message says.
struct RecordFault {
  std::string why;
};

/// The messages of `field`, a list or JSON text of one, in OpenAI's shape (`role`, `content`) or
/// ShareGPT's (`from`, `value`); and of the record `system`, `tools` and `functions`. Throws
/// RecordFault: a role that is not known; a text that is missing, empty where something has to be
/// said, or of parts that are no text; arguments that are no object; a weight other than 0 and 1; a
/// field that tells_what_is_learned(). Other fields of messages in JSON text are added to
/// `record.unread`.
[[nodiscard]] Conversation conversation_of_list(Record& record, const std::string& field);

/// Alpaca: `instruction`, `input`, `output`, `history`, `system`. Throws RecordFault.
[[nodiscard]] Conversation conversation_of_alpaca(const Record& record);

/// A prompt and a completion that are lists of messages; the answers of the prompt are context.
/// Reads each as conversation_of_list().
[[nodiscard]] Conversation conversation_of_prompt(Record& record, const std::string& prompt,
                                                  const std::string& completion);

/// The messages of a field alone, read as conversation_of_list() reads them.
[[nodiscard]] nlohmann::ordered_json messages_of_field(Record& record, const std::string& field);
/// A conversation of these messages, with `system`, `tools` and `functions` of the record.
[[nodiscard]] Conversation conversation_of_messages(const Record& record,
                                                    nlohmann::ordered_json messages);

/// Throws RecordFault where a conversation has no answer that is learned: the first message never
/// is, nor one of weight 0.
void require_an_answer(const Conversation& conversation);

/// A field that is a text, not empty. Throws RecordFault.
[[nodiscard]] std::string text_field(const Record& record, const std::string& name);

/// Throws RecordFault if a name within the field, or the field itself, occurs twice.
void require_once(const Record& record, const std::string& field);

}  // namespace llm::text
