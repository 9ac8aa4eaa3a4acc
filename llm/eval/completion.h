#pragma once
// Continuing texts: `sherd generate`.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "llm/eval/sampling.h"
#include "llm/model/causal_lm.h"
#include "llm/text/tokenizer.h"
#include "sherd/fully_shard.h"

namespace llm::eval {

struct CompletionOptions {
  std::int64_t batch = 8;  ///< prompts a rank and forward
  std::int64_t max_new_tokens = 128;
  Sampling sampling = {};
  std::uint64_t first_number = 0;            ///< TokenPlace::text of the first prompt
  std::vector<text::TokenId> stop_ids = {};  ///< what ends a completion
};

/// Called with each prompt's index and what the model wrote, in order, as batches end.
using TellCompletion = std::function<void(std::size_t prompt, const std::string& completion)>;

/// Continues each prompt as generate() does. Prompts are dealt over the ranks; `tell` is called on
/// every rank with all completions. Collective. Memory: the cache of one batch.
void complete(sherd::Sharded<model::CausalLm>& model,
              std::span<const std::vector<text::TokenId>> prompts, const text::Tokenizer& tokenizer,
              const CompletionOptions& options, const TellCompletion& tell);

}  // namespace llm::eval
