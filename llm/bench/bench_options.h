#pragma once
// What `sherd bench` is asked to measure.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "llm/setup/load_model.h"
#include "llm/track/progress.h"
#include "ops/attention_kernel.h"
#include "sherd/options.h"

namespace llm::bench {

/// Of a sample, where answers alone are supervised.
inline constexpr std::int64_t kAnswerTokens = 8;

struct BenchOptions {
  std::string model;   ///< a config.json, or a folder with one; its weights if it has any
  std::string tokens;  ///< file of int32 ids to read in order; empty: random ids
  std::vector<std::string> ignored_fields = {};  ///< of config.json
  std::int64_t sequence = 512;                   ///< tokens of a sample
  std::int64_t micro_batch = 1;
  std::int64_t accumulation = 1;  ///< micro-batches a step
  std::int64_t steps = 5;         ///< that are timed; 0: memory alone is measured
  std::int64_t warmup = 2;
  std::uint64_t seed = 0;  ///< of weights and ids
  double lr = 1e-4;
  bool answers_only = false;  ///< the last 8 tokens of each sample are supervised, not all
  /// Profile by operator; on a GPU by group of kernels, in steps after those that are timed.
  bool operators = false;
  /// Of one micro-batch a step: gradients are used as soon as they are there, and not clipped.
  bool update_in_backward = false;
  /// That each host sends and receives, for the planned time; none: assumed.
  std::optional<double> link_gb_per_second = std::nullopt;
  std::optional<double> max_minutes = 10;  ///< a bench that would take longer is refused
  /// Gives the system what the allocator keeps. Called before anything is measured: a run does not
  /// multiply what a bench does to know how long it will take.
  std::function<void()> give_back_memory;
  /// Told what is measured, and of steps as they end, at most one a second; null: nobody is.
  track::Progress* progress = nullptr;
  sherd::ShardOptions sharding;                            ///< `precision.param_dtype` is set
  c10::ScalarType moments_dtype = c10::ScalarType::Float;  ///< of AdamW: fp32 or bf16
  /// The world's own, for its plan.
  sherd::ReduceScatter reduce_scatter = sherd::ReduceScatter::RankOrder;
  setup::LossChunk loss_chunk = {};
  /// Rank of LoRA adapters on every linear layer but the head; 0: all parameters are trained.
  std::int64_t lora_rank = 0;
  bool cuda_graphs = false;  ///< micro-batches are graphs of the GPU
  /// Start of the program, for BenchResult::seconds_to_first_step.
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  sherd::ops::AttentionKernel attention = sherd::ops::AttentionKernel::Auto;  ///< on GPUs
};

}  // namespace llm::bench
