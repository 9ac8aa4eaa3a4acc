#include "llm/text/chosen_template.h"

#include <nlohmann/json.hpp>

#include "files/json.h"
#include "llm/text/printable.h"
#include "sherd/error.h"

namespace llm::text {
namespace {

constexpr const char* kNames = "chatml, llama2, llama3, mistral, gemma, zephyr, alpaca";

// The special tokens that the model's folder names, as its own template sees them.
nlohmann::ordered_json tokens_of_folder(const std::filesystem::path& model) {
  auto tokens = nlohmann::ordered_json::object();
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (!std::filesystem::exists(model / file)) {
      continue;
    }
    const auto config = sherd::files::read_json_object((model / file).string());
    for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
      const auto value = config.value(name, nlohmann::json());
      const auto text = value.is_object() ? value.value("content", nlohmann::json()) : value;
      if (text.is_string() && !tokens.contains(name)) {
        tokens[name] = text.get<std::string>();
      }
    }
  }
  return tokens;
}

}  // namespace

std::optional<ChatTemplate> chat_template_of(const std::string& choice,
                                             const std::filesystem::path& model) {
  if (choice == "model") {
    return ChatTemplate::from_folder(model);
  }
  if (std::filesystem::exists(choice)) {
    return ChatTemplate::from_file(choice, tokens_of_folder(model));
  }
  throw sherd::Error(sherd::ExitCode::InputMissing,
                     "data.chat_template: " + in_quotes(choice, 200) +
                         " is neither a file nor a named template: " + kNames);
}

std::string advice_on_chat_template(const std::filesystem::path& model) {
  return "the model in '" + model.string() +
         "' has no chat template, and conversations need one: set data.chat_template to a file or "
         "to one of " +
         kNames;
}

}  // namespace llm::text
