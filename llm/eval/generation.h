#pragma once
// Generation with a KV cache.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "llm/eval/sampling.h"
#include "llm/model/causal_lm.h"
#include "llm/text/tokenizer.h"
#include "sherd/fully_shard.h"

namespace llm::eval {

/// Whether this rank was asked to stop. If any was, all stop.
using StopRequested = std::function<bool()>;

struct GenerationOptions {
  Sampling sampling = {};
  std::vector<std::uint64_t> text_numbers = {};  ///< TokenPlace::text per prompt; empty: 0, 1, …
  StopRequested stop_requested = {};             ///< asked before each token
  /// Called with each token of an answer at once, and with the index of its prompt.
  std::function<void(std::size_t prompt, text::TokenId token)> on_token = {};
};

/// Continues each prompt by a token at a time until one of `stop_ids` (not part of the answer) or
/// `max_new_tokens`. Takes the likeliest token, of equal ones the lowest id, unless
/// `options.sampling` has a temperature. Collective: ranks take the same number of steps, until the
/// last is done; a rank without prompts takes part with none. A text that has ended leaves the
/// batch. Returns nothing, on every rank, if `options.stop_requested` said yes on one.
/// Memory: the cache of `prompts.size()` rows.
[[nodiscard]] std::optional<std::vector<std::vector<text::TokenId>>> generate(
    sherd::Sharded<model::CausalLm>& model, std::span<const std::vector<text::TokenId>> prompts,
    std::int64_t max_new_tokens, std::span<const text::TokenId> stop_ids,
    const GenerationOptions& options = {});

}  // namespace llm::eval
