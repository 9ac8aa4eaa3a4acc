#pragma once
// What a plan is made of: a step, and what it runs on.

#include <cstdint>
#include <optional>
#include <vector>

#include "llm/io/hf_config.h"
#include "llm/plan/device.h"
#include "llm/setup/run_module.h"
#include "ops/attention_kernel.h"
#include "sherd/optim.h"
#include "sherd/options.h"
#include "sherd/world.h"

namespace llm::plan {

/// One micro-batch of a rank, by its samples.
struct MicroBatch {
  std::vector<std::int64_t> sample_tokens;      ///< of each sample
  std::vector<std::int64_t> supervised_tokens;  ///< of each sample, its last ones
};

/// A batch that is evaluated: its loss, and answers to what is not supervised of each sample.
struct PlannedEvaluation {
  MicroBatch batch;
  std::int64_t max_new_tokens = 0;  ///< of an answer; 0: none is generated
};

/// The loss of a run.
struct PlannedLoss {
  bool is_objective = false;       ///< of likelihoods (sherd::Objective); else cross-entropy
  bool reference_is_base = false;  ///< each micro-batch has one more forward, without the adapter
};

/// All that a step's memory and time depend on.
struct PlannedRun {
  io::HfConfig model;
  setup::PrepareModule prepare = {};  ///< what the run makes of its module; empty: nothing
  sherd::FakeRanks ranks;
  sherd::ShardOptions sharding;
  std::optional<int> shard_size = std::nullopt;  ///< of hybrid strategies; none: a host's ranks
  sherd::AdamWMode adamw = {};
  std::int64_t loss_chunk_tokens = 0;  ///< rows of logits at a time; 0: kLossChunkTokens
  /// On a GPU, resolved (attention_on()).
  sherd::ops::AttentionKernel attention = sherd::ops::AttentionKernel::Flash;
  std::vector<MicroBatch> micro_batches;  ///< of a step, on this rank
  PlannedLoss loss = {};
  std::optional<PlannedEvaluation> evaluation = std::nullopt;
  Pooling pooling = {};
  std::int64_t libraries_bytes = 0;   ///< of other libraries, from the first step on
  std::int64_t workspaces_bytes = 0;  ///< of cuBLAS on a GPU, from the first step on
  bool cuda_graphs = false;           ///< micro-batches are run as graphs
};

/// Whether gradients are summed by NCCL's own reduce-scatter.
[[nodiscard]] inline bool sums_natively(const PlannedRun& run) {
  return run.ranks.device != c10::DeviceType::CPU &&
         run.ranks.reduce_scatter == sherd::ReduceScatter::Native;
}

}  // namespace llm::plan
