#pragma once
// The chat template that data asks for.

#include <filesystem>
#include <optional>
#include <string>

#include "llm/text/chat_template.h"

namespace llm::text {

/// Returns the template that `choice`, the value of the key or flag `key`, names: "model" for that
/// of the model's folder (none where it has none), a file, or the name of a template. Throws
/// sherd::Error(BadData, InputMissing).
[[nodiscard]] std::optional<ChatTemplate> chat_template_of(
    const std::string& choice, const std::filesystem::path& model,
    const std::string& key = "data.chat_template");

/// The names of templates: "chatml, llama2, …".
[[nodiscard]] std::string names_of_templates();

/// What the named templates need of a vocabulary.
[[nodiscard]] std::string advice_on_named_templates();

/// "the model in 'FOLDER' has no chat template", with the flag that names one.
[[nodiscard]] std::string text_without_template(const std::filesystem::path& model);

/// What to try with conversations where the model has no chat template.
[[nodiscard]] std::string advice_on_chat_template(const std::filesystem::path& model);

}  // namespace llm::text
