#include "llm/text/chat_template.h"

#include <nlohmann/json.hpp>

#include "files/folder.h"
#include "files/input.h"
#include "files/json.h"
#include "llm/text/c_interface.h"

namespace llm::text {

namespace {

using nlohmann::json;

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
json special_tokens(const json& tokenizer_config, const json& map) {
  json tokens = json::object();
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

}  // namespace

std::optional<ChatTemplate> ChatTemplate::from_folder(const std::filesystem::path& folder) {
  const std::filesystem::path own = folder / "chat_template.jinja";
  const std::filesystem::path config_file = folder / "tokenizer_config.json";
  const json config = read_config(config_file);
  ChatTemplate found;
  if (std::filesystem::exists(own)) {
    sherd::files::check_link(folder.string(), own.string());
    found.file_ = own.string();
    found.template_ = sherd::files::read_file(own.string(), sherd::files::kMaxConfigBytes);
  } else if (auto text = template_in(config, config_file.string())) {
    found.file_ = config_file.string();
    found.template_ = std::move(*text);
  } else {
    return std::nullopt;
  }
  found.tokens_ = special_tokens(config, read_config(folder / "special_tokens_map.json")).dump();
  return found;
}

std::string ChatTemplate::render(const std::string& message) const {
  return render_messages(nlohmann::ordered_json::array(
      {nlohmann::ordered_json{{"role", "user"}, {"content", message}}}));
}

std::string ChatTemplate::render_messages(const nlohmann::ordered_json& messages) const {
  auto variables = nlohmann::ordered_json::parse(tokens_);
  variables["messages"] = messages;
  variables["add_generation_prompt"] = true;
  const std::string text = variables.dump(-1, ' ', false, json::error_handler_t::replace);
  char* rendered = nullptr;
  std::size_t length_bytes = 0;
  checked(
      [&](char** error) {
        return sherd_text_render_chat(slice_of(template_), slice_of(text), &rendered, &length_bytes,
                                      error);
      },
      file_ + ": the chat template cannot be rendered: ");
  const OwnedString owned(rendered);
  return {owned.get(), length_bytes};
}

}  // namespace llm::text
