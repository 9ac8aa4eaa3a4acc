#pragma once
// How a model wants a conversation written: the Jinja template of its folder.

#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace llm::text {

/// A chat template with the special tokens that it may name.
class ChatTemplate {
 public:
  /// From chat_template.jinja, else `chat_template` of tokenizer_config.json (of several the one
  /// called default), as transformers reads them; none where there is none. Throws sherd::Error
  /// BadData, naming file and field.
  [[nodiscard]] static std::optional<ChatTemplate> from_folder(const std::filesystem::path& folder);

  /// What the model is to continue: the conversation of one user's message, and the beginning of
  /// the answer. Special tokens are in it: encode it with SpecialTokens::Leave. Throws sherd::Error
  /// BadData, naming the template, for one that cannot be rendered.
  [[nodiscard]] std::string render(const std::string& message) const;

  /// The same for a conversation: `messages` as chat data has them, a list of objects with role and
  /// content.
  [[nodiscard]] std::string render_messages(const nlohmann::ordered_json& messages) const;

  /// The file it is from.
  [[nodiscard]] const std::string& file() const { return file_; }

 private:
  std::string file_;
  std::string template_;
  std::string tokens_;  // JSON: bos_token, eos_token, …
};

}  // namespace llm::text
