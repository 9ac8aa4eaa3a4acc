#include "llm/text/chat_template.h"

#include <nlohmann/json.hpp>

#include "files/folder.h"
#include "files/input.h"
#include "files/json.h"
#include "llm/text/c_interface.h"

namespace llm::text {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

json read_config(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? sherd::files::read_json_object(path.string())
                                       : json::object();
}

[[noreturn]] void refuse(const std::string& file) {
  throw sherd::Error(sherd::ExitCode::BadData,
                     file +
                         ": /chat_template: should be a string, or a list of objects with name "
                         "and template of which one is called default");
}

// A string, or the default of a list of named ones; nothing where the field is absent.
std::optional<std::string> template_in(const json& config, const std::string& file) {
  const json field = config.value("chat_template", json());
  if (field.is_null()) {
    return std::nullopt;
  }
  if (field.is_string()) {
    return field.get<std::string>();
  }
  for (const json& one : field.is_array() ? field : json::array()) {
    const bool named = one.is_object() && one.value("name", json()) == "default";
    if (named && one.value("template", json()).is_string()) {
      return one["template"].get<std::string>();
    }
  }
  refuse(file);
}

// Each that a template may name, as text.
ordered_json tokens_of(const json& tokenizer_config, const json& map) {
  ordered_json tokens = ordered_json::object();
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    for (const json* file : {&tokenizer_config, &map}) {
      const json value = file->value(name, json());
      const json text = value.is_object() ? value.value("content", json()) : value;
      if (text.is_string() && !tokens.contains(name)) {
        tokens[name] = text;
      }
    }
  }
  return tokens;
}

std::string text_of(const ordered_json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Calls a function of the C interface, `call(char** error)`; its failure becomes an exception.
template <typename Call>
void checked_template(const std::string& file, Call call) {
  char* message = nullptr;
  const std::int32_t status = call(&message);
  const OwnedString owned(message);
  if (status != SHERD_TEXT_OK) {
    throw TemplateError(file, owned.get(), status == SHERD_TEXT_RAISED);
  }
}

struct FreeChat {
  void operator()(sherd_text_rendered_chat* raw) const { sherd_text_free_chat(raw); }
};

struct CloseTemplate {
  void operator()(sherd_chat_template* handle) const { sherd_text_chat_close(handle); }
};

struct CloseConversation {
  void operator()(sherd_conversation* handle) const { sherd_text_conversation_close(handle); }
};

}  // namespace

struct ChatInput::Handle {
  std::unique_ptr<sherd_conversation, CloseConversation> conversation;
};

struct ChatTemplate::Parsed {
  std::unique_ptr<sherd_chat_template, CloseTemplate> handle;
};

ChatTemplate::ChatTemplate(std::string file, std::string source, ordered_json tokens)
    : file_(std::move(file)), source_(std::move(source)), tokens_(std::move(tokens)) {
  sherd_chat_template* handle = nullptr;
  checked_template(
      file_, [&](char** error) { return sherd_text_chat_open(slice_of(source_), &handle, error); });
  auto parsed = std::make_shared<Parsed>();
  parsed->handle.reset(handle);
  parsed_ = std::move(parsed);
}

ordered_json ChatTemplate::tokens_of_folder(const std::filesystem::path& folder) {
  return tokens_of(read_config(folder / "tokenizer_config.json"),
                   read_config(folder / "special_tokens_map.json"));
}

std::optional<ChatTemplate> ChatTemplate::from_folder(const std::filesystem::path& folder) {
  const std::filesystem::path own = folder / "chat_template.jinja";
  const std::filesystem::path config_file = folder / "tokenizer_config.json";
  if (std::filesystem::exists(own)) {
    sherd::files::check_link(folder.string(), own.string());
    return from_file(own, tokens_of_folder(folder));
  }
  if (auto text = template_in(read_config(config_file), config_file.string())) {
    return ChatTemplate(config_file.string(), std::move(*text), tokens_of_folder(folder));
  }
  return std::nullopt;
}

ChatTemplate ChatTemplate::from_file(const std::filesystem::path& file,
                                     ordered_json special_tokens) {
  return {file.string(), sherd::files::read_file(file.string(), sherd::files::kMaxConfigBytes),
          std::move(special_tokens)};
}

ChatTemplate ChatTemplate::from_text(std::string name, std::string source,
                                     ordered_json special_tokens) {
  return {std::move(name), std::move(source), std::move(special_tokens)};
}

ChatTemplate ChatTemplate::named(std::string_view name, ordered_json special_tokens) {
  char* source = nullptr;
  std::size_t length_bytes = 0;
  char* message = nullptr;
  const std::int32_t status =
      sherd_text_chat_named(slice_of(name), &source, &length_bytes, &message);
  const OwnedString owned(status == SHERD_TEXT_OK ? source : message);
  if (status != SHERD_TEXT_OK) {
    throw sherd::Error(sherd::ExitCode::Usage, owned.get());
  }
  return {std::string(name), {owned.get(), length_bytes}, std::move(special_tokens)};
}

RenderedChat ChatTemplate::render(const ordered_json& messages, const ordered_json& tools,
                                  const ordered_json& kwargs, std::string_view now) const {
  return render(input(messages, tools, kwargs), messages.size(), std::nullopt, now);
}

ChatInput ChatTemplate::input(const ordered_json& messages, const ordered_json& tools,
                              const ordered_json& kwargs) const {
  ordered_json variables = tokens_;
  variables.update(kwargs);
  const std::string texts[] = {text_of(messages), text_of(tools), text_of(variables)};
  sherd_conversation* conversation = nullptr;
  checked_template(file_, [&](char** error) {
    return sherd_text_conversation_open(slice_of(texts[0]), slice_of(texts[1]), slice_of(texts[2]),
                                        &conversation, error);
  });
  auto handle = std::make_shared<ChatInput::Handle>();
  handle->conversation.reset(conversation);
  return ChatInput(std::move(handle));
}

RenderedChat ChatTemplate::render(const ChatInput& input, std::size_t count,
                                  std::optional<bool> add_generation_prompt,
                                  std::string_view now) const {
  sherd_text_rendered_chat raw;
  checked_template(file_, [&](char** error) {
    return sherd_text_chat_render(parsed_->handle.get(), input.handle().conversation.get(), count,
                                  add_generation_prompt ? *add_generation_prompt ? 1 : 0 : -1,
                                  slice_of(now), &raw, error);
  });
  const std::unique_ptr<sherd_text_rendered_chat, FreeChat> owned(&raw);
  RenderedChat rendered{{raw.text, raw.length_bytes}, {}};
  for (std::size_t i = 0; i < raw.count; ++i) {
    rendered.spans.push_back({static_cast<std::int64_t>(raw.begin_bytes[i]),
                              static_cast<std::int64_t>(raw.end_bytes[i])});
  }
  return rendered;
}

}  // namespace llm::text
