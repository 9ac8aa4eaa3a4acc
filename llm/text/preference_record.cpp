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
#include "llm/text/python_text.h"

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

bool begins_with(const ordered_json& messages, const ordered_json& prompt) {
  return prompt.size() <= messages.size() &&
         std::equal(prompt.begin(), prompt.end(), messages.begin());
}

// Blanks at its ends do not make it another question.
bool asks(const ordered_json& messages, const std::string& text) {
  return std::any_of(messages.begin(), messages.end(), [&](const ordered_json& message) {
    return message["role"] == "user" &&
           python_strip(message["content"].get_ref<const std::string&>()) == python_strip(text);
  });
}

// Of a prompt, which both continuations repeat or neither.
bool is_repeated(const PairFields& fields, bool in_chosen, bool in_rejected) {
  if (in_chosen != in_rejected) {
    throw RecordFault{fmt::format(
        "{} is repeated in {} and not in {}: whole conversations repeat it, and continuations do "
        "not",
        in_quotes(fields.prompt), in_quotes(in_chosen ? fields.chosen : fields.rejected),
        in_quotes(in_chosen ? fields.rejected : fields.chosen))};
  }
  return in_chosen;
}

// The messages that belong before both: those of the prompt, unless the lists are whole
// conversations, which repeat it.
ordered_json messages_before(Record& record, const PairFields& fields, const ordered_json& chosen,
                             const ordered_json& rejected) {
  if (!is_given(record, fields.prompt)) {
    return ordered_json::array();
  }
  if (record.fields[fields.prompt].is_array()) {
    ordered_json prompt = messages_of_field(record, fields.prompt);
    const bool in_both =
        is_repeated(fields, begins_with(chosen, prompt), begins_with(rejected, prompt));
    return in_both ? ordered_json::array() : prompt;
  }
  const std::string text = text_field(record, fields.prompt);
  if (is_repeated(fields, asks(chosen, text), asks(rejected, text))) {
    return ordered_json::array();
  }
  if (chosen.front()["role"] != "assistant" || rejected.front()["role"] != "assistant") {
    throw RecordFault{fmt::format(
        "{} is a text that {} and {} neither repeat nor answer: make it the first message of "
        "\"user\" in both, or remove it",
        in_quotes(fields.prompt), in_quotes(fields.chosen), in_quotes(fields.rejected))};
  }
  return ordered_json::array({{{"role", "user"}, {"content", text}}});
}

Question pair_of_messages(Record& record, const PairFields& fields) {
  ordered_json chosen = messages_of_field(record, fields.chosen);
  ordered_json rejected = messages_of_field(record, fields.rejected);
  if (chosen == rejected) {
    refuse_equal(fields);
  }
  const ordered_json before = messages_before(record, fields, chosen, rejected);
  chosen.insert(chosen.begin(), before.begin(), before.end());
  rejected.insert(rejected.begin(), before.begin(), before.end());
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
