#pragma once
// Greedy generation with a KV cache.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "llm/model/causal_lm.h"
#include "llm/text/tokenizer.h"
#include "sherd/fully_shard.h"

namespace llm::eval {

/// Whether this rank was asked to stop. If any was, all stop.
using StopRequested = std::function<bool()>;

/// Continues each prompt with the likeliest token at a time until one of `stop_ids` (not part of
/// the answer) or `max_new_tokens`. Of equal scores the lowest id wins. Collective: ranks take the
/// same number of steps, until the last is done; a rank without prompts takes part with none.
/// A text that has ended leaves the batch.
/// `stop_requested`, where there is one, is asked before each token; nothing is returned, on every
/// rank, if one said yes. Memory: the cache of `prompts.size()` rows.
[[nodiscard]] std::optional<std::vector<std::vector<text::TokenId>>> generate(
    sherd::Sharded<model::CausalLm>& model, std::span<const std::vector<text::TokenId>> prompts,
    std::int64_t max_new_tokens, std::span<const text::TokenId> stop_ids,
    const StopRequested& stop_requested = {});

}  // namespace llm::eval
