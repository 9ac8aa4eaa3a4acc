#pragma once
// Log-probabilities of preference pairs by a model.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llm/eval/generation.h"
#include "llm/inputs/samples.h"
#include "llm/model/causal_lm.h"
#include "sherd/fully_shard.h"

namespace llm::eval {

struct PairLogpsOptions {
  std::int64_t batch = 8;                                    ///< pairs per rank and forward pass
  std::string name = {};                                     ///< of the data, for messages
  StopRequested stop_requested = {};                         ///< asked before each batch
  std::function<void(std::int64_t pairs)> on_progress = {};  ///< told how many are done
};

/// Adds the log-likelihoods that a model, with its adapter, gives to the answers of pairs, in their
/// order, to `logps`, which has those of the first ones, and is the same on every rank. Without
/// gradients. Returns false, on every rank, if one of them was asked to stop before the end.
/// Collective. Memory: 16 bytes per pair. Throws sherd::Error(NonFinite) on every rank, naming the
/// pair, for one that is not finite; c10::ValueError on every rank for a sample that is no pair.
[[nodiscard]] bool complete_pair_logps(sherd::Sharded<model::CausalLm>& model,
                                       const inputs::Samples& pairs,
                                       const PairLogpsOptions& options,
                                       std::vector<inputs::PairLogps>& logps);

}  // namespace llm::eval
