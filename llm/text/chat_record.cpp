#include "llm/text/chat_record.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "llm/text/printable.h"

namespace llm::text {

namespace {

using nlohmann::ordered_json;

constexpr std::size_t kValueBytesTold = 40;

bool says_nothing(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

bool has_value(const ordered_json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && !found->is_null();
}

// Around JSON that stands in a text, as tables and Parquet files have it: its field "x".
Record holder_of_text(const std::string& text, const std::string& where,
                      const WantedFields& wanted) {
  Record holder = read_record("{\"x\":" + text + "}", wanted);
  if (!holder.fault.empty()) {
    throw RecordFault{where + ": " + holder.fault};
  }
  require_once(holder, "x");
  if (holder.fields.size() != 1 || holder.names.size() != 1) {
    throw RecordFault{where + ": not JSON"};
  }
  return holder;
}

ordered_json json_in_text(const std::string& text, const std::string& where) {
  return holder_of_text(text, where, {{"x"}, {}}).fields["x"];
}

// A call of a tool: `{"function": {"name", "arguments"}}`, or its function alone.
ordered_json call_of(const ordered_json& value, const std::string& where) {
  if (!value.is_object()) {
    throw RecordFault{fmt::format("{} should be an object, is {}", where, value.type_name())};
  }
  const ordered_json& function = has_value(value, "function") ? value["function"] : value;
  if (!function.is_object() || !has_value(function, "name") || !function["name"].is_string() ||
      function["name"].get_ref<const std::string&>().empty()) {
    throw RecordFault{where + " has no function with a name"};
  }
  ordered_json arguments =
      has_value(function, "arguments") ? function["arguments"] : ordered_json();
  if (arguments.is_string()) {
    arguments = json_in_text(arguments.get<std::string>(), where + ", arguments");
  }
  if (!arguments.is_object()) {
    throw RecordFault{fmt::format("{}: arguments should be an object, or JSON text of one, is {}",
                                  where, arguments.type_name())};
  }
  ordered_json call = ordered_json::object();
  if (has_value(value, "id")) {
    call["id"] = value["id"];
  }
  call["type"] = "function";
  call["function"] = {{"name", function["name"]}, {"arguments", std::move(arguments)}};
  return call;
}

// Tools as templates take them; null where there are none.
ordered_json tools_of(const ordered_json& value, const std::string& field) {
  ordered_json tools = value;
  if (tools.is_string()) {
    const auto text = tools.get<std::string>();
    tools = says_nothing(text) ? ordered_json() : json_in_text(text, in_quotes(field));
  }
  if (tools.is_null()) {
    return tools;
  }
  if (!tools.is_array()) {
    throw RecordFault{fmt::format("{} should be a list, or JSON text of one, is {}",
                                  in_quotes(field), tools.type_name())};
  }
  for (std::size_t i = 0; i < tools.size(); ++i) {
    ordered_json& tool = tools[i];
    if (!tool.is_object()) {
      throw RecordFault{fmt::format("{}, tool {} should be an object, is {}", in_quotes(field),
                                    i + 1, tool.type_name())};
    }
    if (!tool.contains("function")) {
      tool = {{"type", "function"}, {"function", ordered_json(tool)}};
    }
  }
  return tools.empty() ? ordered_json() : tools;
}

// One message of a list, from what the data has of it.
class MessageReader {
 public:
  MessageReader(const ordered_json& message, std::string where, bool is_sharegpt)
      : message_(message), where_(std::move(where)) {
    if (!message.is_object()) {
      throw RecordFault{fmt::format("{} should be an object, is {}", where_, message.type_name())};
    }
    const bool has_from = is_sharegpt || message.contains("from");
    text_field_ = has_from && message.contains("value") ? "value" : "content";
    read_role(has_from);
  }

  ordered_json read() {
    refuse_other_weights();
    ordered_json all = {{"role", role_}};
    ordered_json calls = read_calls();
    if (auto text = content(!calls.empty())) {
      all["content"] = std::move(*text);
    }
    if (auto reasoning = read_reasoning()) {
      all["reasoning_content"] = std::move(*reasoning);
    }
    for (const char* name : {"name", "tool_call_id"}) {
      if (has_value(message_, name)) {
        all[name] = text_of(name);
      }
    }
    if (!calls.empty()) {
      all["tool_calls"] = std::move(calls);
    }
    if (!weight() && role_ == "assistant") {
      all["weight"] = 0;
    }
    return all;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { throw RecordFault{where_ + ": " + why}; }

  void refuse_other_weights() const {
    for (const auto& [name, value] : message_.items()) {
      if (tells_what_is_learned(name) && !value.is_null()) {
        refuse(in_quotes(name) +
               " is not read: write \"weight\": 0 for an answer that is context, 1 for one that is "
               "learned");
      }
    }
  }

  void read_role(bool is_sharegpt) {
    const char* field = message_.contains("role") || !message_.contains("from") ? "role" : "from";
    const auto found = message_.find(field);
    if (found == message_.end() || !found->is_string()) {
      refuse(found == message_.end()
                 ? fmt::format("the {} is missing", field)
                 : fmt::format("the {} should be a text, is {}", field, found->type_name()));
    }
    const auto given = found->get<std::string>();
    role_ = role_named(given, is_sharegpt);
    is_call_text_ = is_sharegpt && given == "function_call";
    if (role_.empty()) {
      refuse(fmt::format("the {} {} is not known; {}", field, in_quotes(given, kValueBytesTold),
                         is_sharegpt ? "known are human, user, gpt, chatgpt, bing, bard, "
                                       "assistant, system, function_call, observation and tool"
                                     : "known are system, developer, user, assistant and tool"));
    }
  }
  static std::string role_named(std::string_view given, bool is_sharegpt) {
    using Names = std::pair<std::string_view, const char*>;
    static constexpr std::array<Names, 6> kOpenAi = {{{"system", "system"},
                                                      {"developer", "developer"},
                                                      {"user", "user"},
                                                      {"assistant", "assistant"},
                                                      {"tool", "tool"},
                                                      {"function", "tool"}}};
    static constexpr std::array<Names, 7> kShareGpt = {{{"human", "user"},
                                                        {"gpt", "assistant"},
                                                        {"chatgpt", "assistant"},
                                                        {"bing", "assistant"},
                                                        {"bard", "assistant"},
                                                        {"function_call", "assistant"},
                                                        {"observation", "tool"}}};
    for (const auto& [name, role] : kOpenAi) {
      if (given == name) {
        return role;
      }
    }
    for (const auto& [name, role] : kShareGpt) {
      if (is_sharegpt && given == name) {
        return role;
      }
    }
    return "";
  }

  [[nodiscard]] std::string text_of(const char* field) const {
    const ordered_json& value = message_[field];
    if (!value.is_string()) {
      refuse(fmt::format("{} should be a text, is {}", field, value.type_name()));
    }
    return value.get<std::string>();
  }

  ordered_json read_calls() const {
    ordered_json calls = ordered_json::array();
    if (has_value(message_, "tool_calls")) {
      const ordered_json& given = message_["tool_calls"];
      if (!given.is_array()) {
        refuse(fmt::format("tool_calls should be a list, is {}", given.type_name()));
      }
      for (std::size_t i = 0; i < given.size(); ++i) {
        calls.push_back(call_of(given[i], fmt::format("{}, call {} of tool_calls", where_, i + 1)));
      }
    }
    if (has_value(message_, "function_call")) {
      calls.push_back(call_of(message_["function_call"], where_ + ", function_call"));
    }
    if (is_call_text_) {
      const std::string place = where_ + ", function_call";
      const ordered_json given = json_in_text(text_of(text_field_), place);
      for (const ordered_json& call : given.is_array() ? given : ordered_json::array({given})) {
        calls.push_back(call_of(call, place));
      }
    }
    if (!calls.empty() && role_ != "assistant") {
      refuse("the role " + role_ + " calls no tools: only assistant does");
    }
    return calls;
  }

  // None beside calls, where the message says nothing.
  [[nodiscard]] std::optional<std::string> content(bool has_calls) const {
    if (is_call_text_) {
      return std::nullopt;
    }
    if (!has_value(message_, text_field_)) {
      if (has_calls) {
        return std::nullopt;
      }
      refuse(fmt::format("{} is {}", text_field_,
                         message_.contains(text_field_) ? "null" : "missing"));
    }
    const ordered_json& value = message_[text_field_];
    std::string text = value.is_array() ? joined(value) : text_of(text_field_);
    const bool has_to_speak = role_ == "user" || (role_ == "assistant" && !has_calls);
    if (has_to_speak && says_nothing(text)) {
      refuse(fmt::format("{} of {} is empty", text_field_, role_));
    }
    return text;
  }
  [[nodiscard]] std::string joined(const ordered_json& parts) const {
    std::string text;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const ordered_json& part = parts[i];
      const std::string place = fmt::format("part {} of {}", i + 1, text_field_);
      if (!part.is_object()) {
        refuse(fmt::format("{} should be an object, is {}", place, part.type_name()));
      }
      const bool has_type = has_value(part, "type") && part["type"].is_string();
      if (!has_type || part["type"] != "text") {
        refuse(has_type ? fmt::format("{} is of type {}: only text can be trained on", place,
                                      in_quotes(part["type"].get<std::string>()))
                        : place + " has no type");
      }
      if (!has_value(part, "text") || !part["text"].is_string()) {
        refuse(place + " has no text");
      }
      text += part["text"].get_ref<const std::string&>();
    }
    return text;
  }

  [[nodiscard]] std::optional<std::string> read_reasoning() const {
    std::optional<std::string> found;
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (has_value(message_, name)) {
        std::string text = text_of(name);
        if (found && *found != text) {
          refuse(std::string(name) + " and another field of reasoning differ");
        }
        found = std::move(text);
      }
    }
    return found;
  }

  [[nodiscard]] bool weight() const {
    if (!has_value(message_, "weight")) {
      return true;
    }
    const ordered_json& value = message_["weight"];
    if (!value.is_number() || (value != 0 && value != 1)) {
      refuse("the weight should be 0 or 1, is " +
             in_quotes(value.dump(-1, ' ', false, ordered_json::error_handler_t::replace)));
    }
    return value == 1;
  }

  const ordered_json& message_;
  std::string where_;
  const char* text_field_ = "content";
  std::string role_;
  bool is_call_text_ = false;  // ShareGPT's function_call, whose text is the call
};

ordered_json list_of_messages(Record& record, const std::string& field, const std::string& before) {
  require_once(record, field);
  const ordered_json& given = record.fields.at(field);
  const std::string quoted = in_quotes(field);
  ordered_json list = given;
  if (given.is_string()) {
    Record holder = holder_of_text(given.get<std::string>(),
                                   quoted + " should be a list of messages, or JSON text of one",
                                   {{"x"}, {"x"}});
    for (const auto& [top, name] : holder.unread) {
      record.unread.emplace_back(field, name);
    }
    list = std::move(holder.fields["x"]);
  }
  if (!list.is_array() || list.empty()) {
    throw RecordFault{
        list.is_array() ? quoted + " is empty: a conversation has messages"
                        : fmt::format("{} should be a list of messages, or JSON text of one, is {}",
                                      quoted, list.type_name())};
  }
  ordered_json messages = ordered_json::array();
  for (std::size_t i = 0; i < list.size(); ++i) {
    messages.push_back(
        MessageReader(list[i], fmt::format("{}message {}", before, i + 1), field == "conversations")
            .read());
  }
  return messages;
}

// Empty where there is none.
std::string text_or_none(const Record& record, const std::string& name) {
  require_once(record, name);
  const auto found = record.fields.find(name);
  if (found == record.fields.end() || found->is_null()) {
    return "";
  }
  if (!found->is_string()) {
    throw RecordFault{
        fmt::format("{} should be a text, is {}", in_quotes(name), found->type_name())};
  }
  auto text = found->get<std::string>();
  return says_nothing(text) ? "" : text;
}

// A `system` column: the conversation's first message, unless that says the same.
void put_system_first(ordered_json& messages, const std::string& text) {
  if (text.empty()) {
    return;
  }
  const ordered_json system = {{"role", "system"}, {"content", text}};
  if (messages.empty() || messages.front() != system) {
    messages.insert(messages.begin(), system);
  }
}

ordered_json tools_beside(const Record& record) {
  ordered_json all;
  for (const std::string field : {"tools", "functions"}) {
    require_once(record, field);
    const auto found = record.fields.find(field);
    if (found != record.fields.end()) {
      ordered_json tools = tools_of(*found, field);
      if (!tools.is_null() && !all.is_null()) {
        throw RecordFault{"has both \"tools\" and \"functions\": one is enough"};
      }
      all = all.is_null() ? std::move(tools) : std::move(all);
    }
  }
  return all;
}

}  // namespace

void require_once(const Record& record, const std::string& field) {
  for (const auto& [top, name] : record.twice) {
    if (top == field) {
      throw RecordFault{top == name ? fmt::format("the column {} occurs twice", in_quotes(name))
                                    : fmt::format("{}: the field {} occurs twice", in_quotes(top),
                                                  in_quotes(name))};
    }
  }
}

std::string text_field(const Record& record, const std::string& name) {
  require_once(record, name);
  const ordered_json& value = record.fields.at(name);
  if (!value.is_string()) {
    throw RecordFault{
        fmt::format("{} should be a string, is {}", in_quotes(name), value.type_name())};
  }
  auto text = value.get<std::string>();
  if (says_nothing(text)) {
    throw RecordFault{in_quotes(name) + " is empty"};
  }
  return text;
}

void require_an_answer(const Conversation& conversation) {
  const ordered_json& messages = conversation.messages;
  for (std::size_t i = 1; i < messages.size(); ++i) {
    if (messages[i]["role"] == "assistant" && !messages[i].contains("weight")) {
      return;
    }
  }
  throw RecordFault{
      "has no answer to learn: no message of assistant after the first, or all of weight 0"};
}

Conversation conversation_of_list(Record& record, const std::string& field) {
  Conversation conversation{list_of_messages(record, field, ""), tools_beside(record)};
  put_system_first(conversation.messages, text_or_none(record, "system"));
  require_an_answer(conversation);
  return conversation;
}

Conversation conversation_of_alpaca(const Record& record) {
  Conversation conversation{ordered_json::array(), tools_beside(record)};
  ordered_json& messages = conversation.messages;
  put_system_first(messages, text_or_none(record, "system"));
  const auto add = [&](const char* role, std::string text) {
    messages.push_back({{"role", role}, {"content", std::move(text)}});
  };
  require_once(record, "history");
  ordered_json history = record.fields.value("history", ordered_json());
  if (history.is_string()) {
    const auto text = history.get<std::string>();
    history = says_nothing(text) ? ordered_json() : json_in_text(text, "\"history\"");
  }
  if (!history.is_null() && !history.is_array()) {
    throw RecordFault{fmt::format("\"history\" should be a list, is {}", history.type_name())};
  }
  for (std::size_t i = 0; i < history.size(); ++i) {
    const ordered_json& turn = history[i];
    const bool is_pair =
        turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
    if (!is_pair || says_nothing(turn[0].get_ref<const std::string&>()) ||
        says_nothing(turn[1].get_ref<const std::string&>())) {
      throw RecordFault{
          fmt::format("\"history\", turn {} should be a question and its answer", i + 1)};
    }
    add("user", turn[0].get<std::string>());
    add("assistant", turn[1].get<std::string>());
  }
  std::string prompt = text_field(record, "instruction");
  if (const std::string input = text_or_none(record, "input"); !input.empty()) {
    prompt += "\n\n" + input;
  }
  add("user", std::move(prompt));
  add("assistant", text_field(record, "output"));
  return conversation;
}

ordered_json messages_of_field(Record& record, const std::string& field) {
  return list_of_messages(record, field, field + ", ");
}

Conversation conversation_of_messages(const Record& record, ordered_json messages) {
  Conversation conversation{std::move(messages), tools_beside(record)};
  put_system_first(conversation.messages, text_or_none(record, "system"));
  require_an_answer(conversation);
  return conversation;
}

Conversation conversation_of_prompt(Record& record, const std::string& prompt,
                                    const std::string& completion) {
  ordered_json messages = messages_of_field(record, prompt);
  for (ordered_json& message : messages) {
    if (message["role"] == "assistant") {
      message["weight"] = 0;
    }
  }
  for (const ordered_json& message : messages_of_field(record, completion)) {
    messages.push_back(message);
  }
  return conversation_of_messages(record, std::move(messages));
}

}  // namespace llm::text
