#pragma once
// A conversation with a model: commands, messages and answers.

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/chat_input.h"
#include "llm/eval/evaluated_model.h"
#include "llm/eval/sampling.h"
#include "llm/model/causal_lm.h"
#include "llm/text/tokenizer.h"
#include "llm/track/progress.h"
#include "sherd/fully_shard.h"

namespace app {

struct ChatOptions {
  std::int64_t max_new_tokens = 1024;  ///< per answer
  llm::eval::Sampling sampling = {};
  std::string system;  ///< the system message; empty: none
};

/// Answers the lines of standard input on standard output until the input's end or `/exit`. Each
/// answer is of the whole conversation, in the chat template of `chat`. Lines for people go to
/// standard error.
class ChatSession {
 public:
  ChatSession(sherd::Sharded<llm::model::CausalLm>& model, llm::text::Tokenizer tokenizer,
              llm::eval::EvaluatedChat chat, ChatOptions options, llm::track::Progress& progress);

  /// Throws sherd::Error(StorageIo) if an answer cannot be written.
  void run();

 private:
  enum class Next { Line, End };

  // A line that begins with a slash.
  [[nodiscard]] Next command(const std::string& line);
  void set_system(const std::string& text);
  void answer(const std::string& message);
  // Takes the message back and says why if it cannot be answered.
  [[nodiscard]] std::vector<llm::text::TokenId> encoded_conversation() const;
  // Writes the answer as it comes and returns it.
  [[nodiscard]] std::string written_answer(const std::vector<llm::text::TokenId>& ids,
                                           std::int64_t most_tokens);
  void tell(const std::string& line) const;

  sherd::Sharded<llm::model::CausalLm>& model_;
  llm::text::Tokenizer tokenizer_;
  llm::eval::EvaluatedChat chat_;
  ChatOptions options_;
  llm::track::Progress& progress_;
  std::int64_t context_;
  ChatInput input_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  std::uint64_t answers_ = 0;  // numbers the random streams
};

}  // namespace app
