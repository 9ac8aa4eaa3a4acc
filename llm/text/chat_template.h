#pragma once
// How a model wants a conversation written: the Jinja template of its folder, a file or a name.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "llm/text/tokenizer.h"
#include "sherd/error.h"

namespace llm::text {

/// A template that cannot be parsed or rendered. what() names the template's file.
class TemplateError : public sherd::Error {
 public:
  TemplateError(const std::string& file, std::string message, bool raised)
      : sherd::Error(sherd::ExitCode::BadData,
                     file + ": the chat template cannot be rendered: " + message),
        message_(std::move(message)),
        raised_(raised) {}
  /// Returns the message without the file.
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  /// Returns true if the template itself refused the conversation, by raise_exception().
  [[nodiscard]] bool raised() const noexcept { return raised_; }

 private:
  std::string message_;
  bool raised_;
};

/// A rendered conversation.
struct RenderedChat {
  std::string text;
  /// The bytes of the template's generation blocks.
  std::vector<ByteRange> spans;
};

/// A conversation as templates read it: converted once, rendered often. Cheap to copy.
class ChatInput {
 public:
  struct Handle;
  explicit ChatInput(std::shared_ptr<const Handle> handle) : handle_(std::move(handle)) {}
  [[nodiscard]] const Handle& handle() const { return *handle_; }

 private:
  std::shared_ptr<const Handle> handle_;
};

/// A chat template with the special tokens that it may name. Parsed once. Cheap to copy; several
/// threads may render at once.
class ChatTemplate {
 public:
  /// From chat_template.jinja, else `chat_template` of tokenizer_config.json (of several the one
  /// called default), as transformers reads them; none where there is none. Throws sherd::Error
  /// BadData, naming file and field, and TemplateError.
  [[nodiscard]] static std::optional<ChatTemplate> from_folder(const std::filesystem::path& folder);
  /// From a file of its own. `special_tokens`: an object such as {"bos_token": "<s>"}. Throws
  /// sherd::Error and TemplateError.
  [[nodiscard]] static ChatTemplate from_file(
      const std::filesystem::path& file,
      nlohmann::ordered_json special_tokens = nlohmann::ordered_json::object());

  /// From its text; `name` is for messages. Throws TemplateError.
  [[nodiscard]] static ChatTemplate from_text(
      std::string name, std::string source,
      nlohmann::ordered_json special_tokens = nlohmann::ordered_json::object());

  /// One of those that ship: chatml, llama2, llama3, mistral, gemma, zephyr or alpaca. Throws
  /// sherd::Error Usage, listing these names, for another.
  [[nodiscard]] static ChatTemplate named(
      std::string_view name,
      nlohmann::ordered_json special_tokens = nlohmann::ordered_json::object());

  /// The special tokens that a model's folder names (bos_token, eos_token …), an object. Throws
  /// sherd::Error BadData.
  [[nodiscard]] static nlohmann::ordered_json tokens_of_folder(const std::filesystem::path& folder);

  /// Renders as transformers' apply_chat_template does. `messages` is a list, `tools` a list or
  /// null. `kwargs` holds add_generation_prompt and the template's own arguments; they win over the
  /// special tokens. `now` is the local time for strftime_now, such as 2026-03-09T07:05:03, or
  /// empty for the present time. Throws TemplateError.
  [[nodiscard]] RenderedChat render(const nlohmann::ordered_json& messages,
                                    const nlohmann::ordered_json& tools,
                                    const nlohmann::ordered_json& kwargs,
                                    std::string_view now) const;

  /// Converts a conversation for renders of its first messages; arguments as those of render().
  /// Throws TemplateError.
  [[nodiscard]] ChatInput input(const nlohmann::ordered_json& messages,
                                const nlohmann::ordered_json& tools,
                                const nlohmann::ordered_json& kwargs) const;
  /// Renders the first `count` messages. Without `add_generation_prompt`, `kwargs` decide. Throws
  /// TemplateError.
  [[nodiscard]] RenderedChat render(const ChatInput& input, std::size_t count,
                                    std::optional<bool> add_generation_prompt,
                                    std::string_view now) const;

  /// The file it is from, or the name.
  [[nodiscard]] const std::string& file() const { return file_; }
  /// The template's text.
  [[nodiscard]] const std::string& source() const { return source_; }
  /// The special tokens that it may name, an object.
  [[nodiscard]] const nlohmann::ordered_json& special_tokens() const { return tokens_; }

 private:
  struct Parsed;
  ChatTemplate(std::string file, std::string source, nlohmann::ordered_json tokens);

  std::string file_;
  std::string source_;
  nlohmann::ordered_json tokens_;  // bos_token, eos_token, …
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace llm::text
