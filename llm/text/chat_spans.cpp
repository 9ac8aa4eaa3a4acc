#include "llm/text/chat_spans.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "llm/text/printable.h"
#include "llm/text/python_text.h"
#include "llm/text/utf8.h"
#include "sherd/error.h"

namespace llm::text {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kToldBytes = 60;

// What to try where a template fails on the first messages.
std::string advice_on_unrendered(const ordered_json& messages, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (messages[i].contains("tool_calls")) {
      return fmt::format(
          ". Message {} calls a tool, which this template may not write: name another with "
          "data.chat_template",
          i + 1);
    }
  }
  return ". Correct the conversation, or name another template with data.chat_template";
}

// An assistant turn, rendered as the last message of its conversation.
struct Turn {
  int index = 0;
  std::string prompt;     // what generation would be given: P
  std::string text;       // the same with the turn in it: L
  std::size_t begin = 0;  // of `text`: what is learned, stop token included
  std::size_t end = 0;

  [[nodiscard]] std::string_view learned() const {
    return std::string_view(text).substr(begin, end - begin);
  }
};

[[nodiscard]] bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// How many bytes two texts have in common, without a part of a character.
std::size_t common_bytes(std::string_view a, std::string_view b) {
  auto at = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                     a.begin());
  const auto cuts = [](std::string_view text, std::size_t place) {
    return place < text.size() && is_continuation(text[place]);
  };
  while (at > 0 && (cuts(a, at) || cuts(b, at))) {
    --at;
  }
  return at;
}

// What all tokens begin with: often `<|`.
std::string_view common_begin(const std::vector<std::string>& tokens) {
  std::string_view begin = tokens.empty() ? "" : std::string_view(tokens.front());
  for (const std::string& token : tokens) {
    begin = begin.substr(0, common_bytes(begin, token));
  }
  return begin;
}

// The first of some tokens, which all have one begin, in a text of a JSON value, names of fields
// included.
std::optional<std::string> token_in(const ordered_json& value,
                                    const std::vector<std::string>& tokens,
                                    std::string_view common) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (!contains(text, common)) {
      return std::nullopt;
    }
    const auto found = std::find_if(tokens.begin(), tokens.end(), [&](const std::string& token) {
      return !token.empty() && contains(text, token);
    });
    return found == tokens.end() ? std::nullopt : std::optional(*found);
  }
  if (!value.is_structured()) {
    return std::nullopt;
  }
  for (const auto& [key, item] : value.items()) {
    const auto in_key =
        value.is_object() ? token_in(ordered_json(key), tokens, common) : std::nullopt;
    if (auto found = in_key ? in_key : token_in(item, tokens, common)) {
      return found;
    }
  }
  return std::nullopt;
}

// The place in low…high just after the last `>`, `]` or line end, so that no token is cut:
// <|START_TEXT|> and <|START_THINKING|> have nine characters in common.
std::size_t after_last_mark(std::string_view text, std::size_t low, std::size_t high) {
  const std::size_t last = text.substr(0, high).find_last_of(">]\n");
  return last == std::string_view::npos ? low : std::max(low, last + 1);
}

// The texts of a content: itself, or those of its parts.
std::vector<std::string> parts_of_content(const ordered_json& message) {
  const ordered_json content = message.value("content", ordered_json());
  if (content.is_string()) {
    return {content.get<std::string>()};
  }
  std::vector<std::string> parts;
  for (const ordered_json& part : content.is_array() ? content : ordered_json::array()) {
    if (part.is_object() && part.contains("text") && part["text"].is_string()) {
      parts.push_back(part["text"].get<std::string>());
    }
  }
  return parts;
}

bool holds_stripped(std::string_view learned, std::string_view part) {
  return contains(learned, python_strip(part));
}

std::string dropped_of_content(std::string_view text, std::string_view learned) {
  constexpr std::string_view kBegin = "<think>";
  constexpr std::string_view kEnd = "</think>";
  if (holds_stripped(learned, text)) {
    return "";
  }
  const std::size_t end = text.rfind(kEnd);
  if (end == std::string_view::npos || !holds_stripped(learned, text.substr(end + kEnd.size()))) {
    return "dropped_content";
  }
  const std::string_view before = text.substr(0, end);
  const std::size_t begin = before.rfind(kBegin);
  const std::string_view reasoning =
      begin == std::string_view::npos ? before : before.substr(begin + kBegin.size());
  return holds_stripped(learned, reasoning) ? "" : "dropped_reasoning";
}

// Which part of an assistant's message is not in what is learned; empty if all of it is there.
std::string dropped(const ordered_json& message, std::string_view learned) {
  for (const std::string& text : parts_of_content(message)) {
    if (auto reason = dropped_of_content(text, learned); !reason.empty()) {
      return reason;
    }
  }
  for (const char* field : {"reasoning_content", "thinking", "reasoning"}) {
    if (message.contains(field) && message[field].is_string()) {
      if (!holds_stripped(learned, message[field].get_ref<const std::string&>())) {
        return "dropped_reasoning";
      }
      break;
    }
  }
  const ordered_json calls = message.value("tool_calls", ordered_json());
  for (const ordered_json& call : calls.is_array() ? calls : ordered_json::array()) {
    const ordered_json function = call.is_object() ? call.value("function", call) : ordered_json();
    const ordered_json name =
        function.is_object() ? function.value("name", ordered_json()) : ordered_json();
    if (name.is_string() && !contains(learned, name.get_ref<const std::string&>())) {
      return "dropped_tool_call";
    }
  }
  return "";
}

// Whether a content of parts stands in `text` as the template language or tojson prints a list.
bool is_printed_as_list(const ordered_json& message, std::string_view text) {
  const ordered_json content = message.value("content", ordered_json());
  return content.is_array() && !content.empty() &&
         (contains(text, python_repr(content)) || contains(text, python_json(content)));
}

// The rule for one conversation.
class Learning {
 public:
  Learning(const Conversation& conversation, const ChatRule& rule)
      : messages_(conversation.messages), tools_(conversation.tools), rule_(rule) {}

  // The turns that are learned. Throws ChatFault.
  std::vector<Turn> turns() const {
    const std::vector<int> indices = learned_turns();
    if (indices.empty()) {
      throw ChatFault{"nothing_to_learn"};
    }
    refuse_special_tokens();
    std::vector<Turn> all;
    for (const int index : indices) {
      all.push_back(rendered(index));
    }
    return all;
  }

 private:
  // A first message has no prompt; weight 0 is context only.
  std::vector<int> learned_turns() const {
    std::vector<int> turns;
    for (std::size_t i = 1; i < messages_.size(); ++i) {
      const ordered_json& message = messages_[i];
      const ordered_json weight = message.value("weight", ordered_json());
      const bool is_context =
          (weight.is_number() && weight.get<double>() == 0) || weight == ordered_json(false);
      if (message.value("role", ordered_json()) == "assistant" && !is_context) {
        turns.push_back(static_cast<int>(i));
      }
    }
    if (rule_.last_only && !turns.empty()) {
      turns = {turns.back()};
    }
    return turns;
  }

  void refuse_special_tokens() const {
    const std::string_view common = common_begin(rule_.control_tokens);
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (auto token = token_in(messages_[i], rule_.control_tokens, common)) {
        throw ChatFault{"special_token_in_text", static_cast<int>(i), std::move(*token)};
      }
    }
    if (auto token = token_in(tools_, rule_.control_tokens, common)) {
      throw ChatFault{"special_token_in_text", std::nullopt, std::move(*token)};
    }
  }

  [[nodiscard]] std::string render(std::size_t count, bool add_generation_prompt, int turn) const {
    try {
      return rule_.render(messages_, count, add_generation_prompt);
    } catch (const sherd::Error& error) {
      throw ChatFault{"template", turn, error.what() + advice_on_unrendered(messages_, count)};
    }
  }

  [[nodiscard]] Turn rendered(int index) const {
    const auto count = static_cast<std::size_t>(index);
    Turn turn{index, render(count, true, index), render(count + 1, false, index)};
    turn.begin = turn.text.starts_with(turn.prompt) ? turn.prompt.size() : begin_as_rendered(turn);
    const auto end = first_stop(turn.text, turn.begin, rule_.stop_tokens);
    if (!end) {
      const std::string_view learned = std::string_view(turn.text).substr(turn.begin);
      std::size_t told = learned.size() - std::min(learned.size(), kToldBytes);
      while (told < learned.size() && is_continuation(learned[told])) {
        ++told;
      }
      throw ChatFault{"no_stop", index, std::string(learned.substr(told))};
    }
    turn.end = *end;
    for (std::size_t i = 0; i <= count; ++i) {
      if (is_printed_as_list(messages_[i], turn.text)) {
        throw ChatFault{"printed_as_list", index};
      }
    }
    if (auto reason = dropped(messages_[count], turn.learned()); !reason.empty()) {
      throw ChatFault{std::move(reason), index};
    }
    return turn;
  }

  // Where learning begins although the whole does not begin with the prompt: only where they part
  // in what add_generation_prompt adds. Else a user's text could be learned.
  [[nodiscard]] std::size_t begin_as_rendered(const Turn& turn) const {
    const std::size_t at = common_bytes(turn.prompt, turn.text);
    const ChatFault mismatch{
        "mismatch",
        turn.index,
        "",
        at,
        std::string(start_of(std::string_view(turn.prompt).substr(at), kToldBytes)),
        std::string(start_of(std::string_view(turn.text).substr(at), kToldBytes))};
    if (!rule_.as_rendered) {
      throw mismatch;
    }
    std::string history;
    try {
      history = render(static_cast<std::size_t>(turn.index), false, turn.index);
    } catch (const ChatFault&) {
      throw mismatch;
    }
    if (at < history.size() || !turn.text.starts_with(history)) {
      throw mismatch;
    }
    return after_last_mark(turn.text, history.size(), at);
  }

  const ordered_json& messages_;
  const ordered_json& tools_;
  const ChatRule& rule_;
};

// From the last turn to the first: each sample takes all earlier turns that it holds.
std::vector<ChatSample> grouped(const std::vector<Turn>& turns) {
  std::vector<ChatSample> samples;
  std::vector<const Turn*> left;
  for (const Turn& turn : turns) {
    left.push_back(&turn);
  }
  while (!left.empty()) {
    const std::string& text = left.back()->text;
    const auto is_held = [&](const Turn* turn) {
      return turn == left.back() ||
             text.starts_with(std::string_view(turn->text).substr(0, turn->end));
    };
    ChatSample sample{{}, text, {}};
    std::vector<const Turn*> others;
    for (const Turn* turn : left) {
      if (!is_held(turn)) {
        others.push_back(turn);
        continue;
      }
      sample.turns.push_back(turn->index);
      sample.spans.push_back(
          {static_cast<std::int64_t>(turn->begin), static_cast<std::int64_t>(turn->end)});
    }
    left = std::move(others);
    samples.insert(samples.begin(), std::move(sample));
  }
  return samples;
}

std::string what_of(const ChatFault& fault) {
  const std::string& reason = fault.reason;
  if (reason == "nothing_to_learn") {
    return "no assistant turn can be learned: it is the first message, or its weight is 0";
  }
  if (reason == "special_token_in_text") {
    return fmt::format(
        "contains the special token {}: remove it, or set "
        "data.special_tokens_in_text = \"as_text\"",
        in_quotes(fault.detail));
  }
  if (reason == "template") {
    return fault.detail;
  }
  if (reason == "mismatch") {
    return fmt::format(
        "the chat template writes this turn differently after a generation prompt: from byte {} "
        "the prompt has {}, the conversation {}. Fix the template, name another with "
        "data.chat_template, or set data.on_template_mismatch = \"as_rendered\"",
        fault.common_bytes, in_quotes(fault.prompt), in_quotes(fault.text));
  }
  if (reason == "no_stop") {
    return fmt::format(
        "the chat template ends this turn without a token that stops generation, "
        "with {}: the model would not learn to stop. Name another with "
        "data.chat_template",
        in_quotes(fault.detail));
  }
  if (reason == "printed_as_list") {
    return "the chat template prints a content of parts as a list: give the content as one string";
  }
  const std::string what = reason == "dropped_content"     ? "text"
                           : reason == "dropped_reasoning" ? "reasoning"
                                                           : "tool call";
  return fmt::format(
      "the chat template leaves out this turn's {}: remove it from the data, or "
      "name another template with data.chat_template",
      what);
}

}  // namespace

std::string ChatFault::message() const {
  return (turn ? fmt::format("message {}: ", *turn + 1) : "") + what_of(*this);
}

std::optional<std::size_t> first_stop(std::string_view text, std::size_t begin,
                                      const std::vector<std::string>& stop_tokens) {
  std::size_t first = std::string_view::npos;
  std::size_t length = 0;
  for (const std::string& token : stop_tokens) {
    const std::size_t at = text.find(token, begin);
    if (at < first || (at == first && at != std::string_view::npos && token.size() > length)) {
      first = at;
      length = token.size();
    }
  }
  return first == std::string_view::npos ? std::nullopt : std::optional(first + length);
}

ChatVerdict samples_of(const Conversation& conversation, const ChatRule& rule) {
  try {
    return {grouped(Learning(conversation, rule).turns())};
  } catch (const ChatFault& fault) {
    return {{}, fault};
  }
}

}  // namespace llm::text
