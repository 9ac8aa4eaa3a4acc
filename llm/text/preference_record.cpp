#include "llm/text/preference_record.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "llm/text/chat_record.h"
#include "llm/text/conversation.h"
#include "llm/text/printable.h"

namespace llm::text {

namespace {

using nlohmann::ordered_json;

bool is_given(const Record& record, const std::string& field) {
  const auto found = record.fields.find(field);
  return found != record.fields.end() && !found->is_null();
}

[[noreturn]] void refuse_equal(const PairFields& fields) {
  throw RecordFault{fmt::format("{} and {} are equal: a pair without a difference teaches nothing",
                                in_quotes(fields.chosen), in_quotes(fields.rejected))};
}

Question paired(Question chosen, Question rejected) {
  chosen.rejected = std::make_shared<const Question>(std::move(rejected));
  return chosen;
}

// Where the prompt ends that two texts begin with. Of a dialogue behind its last "Assistant:",
// since answers may begin alike; else behind the last word that both have whole.
std::size_t end_of_common_prompt(std::string_view a, std::string_view b) {
  constexpr std::string_view kAssistant = "\n\nAssistant:";
  const auto differs = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  const auto common = a.substr(0, static_cast<std::size_t>(differs - a.begin()));
  if (const std::size_t turn = common.rfind(kAssistant); turn != std::string_view::npos) {
    return turn + kAssistant.size();
  }
  const std::size_t blank = common.find_last_of(" \t\r\n");
  return blank == std::string_view::npos ? 0 : blank;
}

Question pair_of_texts(const Record& record, const PairFields& fields) {
  std::string chosen = text_field(record, fields.chosen);
  std::string rejected = text_field(record, fields.rejected);
  if (chosen == rejected) {
    refuse_equal(fields);
  }
  std::string prompt;
  if (is_given(record, fields.prompt)) {
    prompt = text_field(record, fields.prompt);
  } else {
    const std::size_t end = end_of_common_prompt(chosen, rejected);
    if (end == 0 || end == chosen.size() || end == rejected.size()) {
      throw RecordFault{fmt::format(
          "has no {}, and {} and {} {}: name the prompt's field with columns = {{ prompt = \"…\" "
          "}}",
          in_quotes(fields.prompt), in_quotes(fields.chosen), in_quotes(fields.rejected),
          end == 0 ? "have no common beginning that could be one"
                   : "differ only in that one of them ends earlier")};
    }
    prompt = chosen.substr(0, end);
    chosen.erase(0, end);
    rejected.erase(0, end);
  }
  Question better;
  better.question = prompt;
  better.answers = {{std::move(chosen)}};
  Question worse;
  worse.question = std::move(prompt);
  worse.answers = {{std::move(rejected)}};
  return paired(std::move(better), std::move(worse));
}

// The first `context` messages are the prompt's: their answers are not learned.
Question continuation(const Record& record, ordered_json messages, std::size_t context,
                      const std::string& field) {
  for (std::size_t i = 0; i < context; ++i) {
    if (messages[i]["role"] == "assistant") {
      messages[i]["weight"] = 0;
    }
  }
  Question question;
  try {
    question.conversation =
        std::make_shared<const Conversation>(conversation_of_messages(record, std::move(messages)));
  } catch (const RecordFault& fault) {
    throw RecordFault{in_quotes(field) + ": " + fault.why};
  }
  return question;
}

// The messages of the prompt; of whole conversations an empty list.
ordered_json prompt_of(Record& record, const PairFields& fields, bool begins_with_answer) {
  if (!is_given(record, fields.prompt)) {
    return ordered_json::array();
  }
  if (record.fields[fields.prompt].is_array()) {
    return messages_of_field(record, fields.prompt);
  }
  const std::string text = text_field(record, fields.prompt);
  // Whole conversations have it as their user's first message.
  return begins_with_answer ? ordered_json::array({{{"role", "user"}, {"content", text}}})
                            : ordered_json::array();
}

Question pair_of_messages(Record& record, const PairFields& fields) {
  ordered_json chosen = messages_of_field(record, fields.chosen);
  ordered_json rejected = messages_of_field(record, fields.rejected);
  if (chosen == rejected) {
    refuse_equal(fields);
  }
  const ordered_json prompt = prompt_of(record, fields, chosen.front()["role"] == "assistant");
  chosen.insert(chosen.begin(), prompt.begin(), prompt.end());
  rejected.insert(rejected.begin(), prompt.begin(), prompt.end());
  const std::size_t shorter = std::min(chosen.size(), rejected.size());
  std::size_t context = 0;
  while (context < shorter && chosen[context] == rejected[context]) {
    ++context;
  }
  if (context == 0) {
    throw RecordFault{fmt::format(
        "has no {}, and {} and {} have no first message in common that could be one",
        in_quotes(fields.prompt), in_quotes(fields.chosen), in_quotes(fields.rejected))};
  }
  return paired(continuation(record, std::move(chosen), context, fields.chosen),
                continuation(record, std::move(rejected), context, fields.rejected));
}

}  // namespace

Question pair_of(Record& record, const PairFields& fields) {
  const bool are_lists =
      record.fields[fields.chosen].is_array() && record.fields[fields.rejected].is_array();
  const bool is_prompt_list =
      is_given(record, fields.prompt) && record.fields[fields.prompt].is_array();
  if (are_lists) {
    return pair_of_messages(record, fields);
  }
  if (is_prompt_list) {
    throw RecordFault{fmt::format("{} is a list of messages: {} and {} should be such lists too",
                                  in_quotes(fields.prompt), in_quotes(fields.chosen),
                                  in_quotes(fields.rejected))};
  }
  return pair_of_texts(record, fields);
}

}  // namespace llm::text
