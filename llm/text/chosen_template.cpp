#include "llm/text/chosen_template.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/ranges.h>

#include "llm/text/printable.h"
#include "sherd/error.h"

namespace llm::text {
namespace {

constexpr std::array<std::string_view, 7> kNames{"chatml", "llama2", "llama3", "mistral",
                                                 "gemma",  "zephyr", "alpaca"};

}  // namespace

std::string names_of_templates() {
  return fmt::format("{}", fmt::join(kNames, ", "));
}

std::optional<ChatTemplate> chat_template_of(const std::string& choice,
                                             const std::filesystem::path& model,
                                             const std::string& key) {
  if (choice == "model") {
    return ChatTemplate::from_folder(model);
  }
  if (std::find(kNames.begin(), kNames.end(), choice) != kNames.end()) {
    return ChatTemplate::named(choice, ChatTemplate::tokens_of_folder(model));
  }
  if (std::filesystem::exists(choice)) {
    return ChatTemplate::from_file(choice, ChatTemplate::tokens_of_folder(model));
  }
  throw sherd::Error(sherd::ExitCode::InputMissing,
                     key + ": " + in_quotes(choice, 200) +
                         " is neither a file nor a named template: " + names_of_templates());
}

std::string advice_on_named_templates() {
  return "llama2, mistral, zephyr and alpaca end an answer with the model's own end token; chatml "
         "needs <|im_end|>, llama3 <|eot_id|>, gemma <end_of_turn>";
}

std::string text_without_template(const std::filesystem::path& model) {
  return "the model in '" + model.string() +
         "' has no chat template. Name the one that it was trained with: --template with a Jinja "
         "file or one of " +
         names_of_templates();
}

std::string advice_on_chat_template(const std::filesystem::path& model) {
  return "the model in '" + model.string() +
         "' has no chat template, and conversations need one: set data.chat_template to a file or "
         "to one of " +
         names_of_templates() + ". " + advice_on_named_templates();
}

}  // namespace llm::text
