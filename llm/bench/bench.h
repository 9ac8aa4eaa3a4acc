#pragma once
// How fast this machine trains a model: `sherd bench`.

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "llm/plan/device_table.h"
#include "llm/plan/memory_plan.h"
#include "llm/plan/step_time.h"
#include "llm/track/progress.h"
#include "llm/train/step_profile.h"
#include "ops/attention_kernel.h"
#include "sherd/options.h"
#include "sherd/world.h"

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
  bool cuda_graphs = false;  ///< micro-batches are graphs of the GPU
  /// Start of the program, for BenchResult::seconds_to_first_step.
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  sherd::ops::AttentionKernel attention = sherd::ops::AttentionKernel::Auto;  ///< on GPUs
};

/// Rank 0's times, except where said.
struct BenchResult {
  std::string isa;      ///< the path of the processor that all ranks took
  std::string kernels;  ///< on a GPU: ops::kernels_text()
  std::vector<sherd::ops::AttentionChoice> attention;  ///< on a GPU: the kernels that compute it
  std::string transport;             ///< what carries parameters and gradients between ranks
  std::vector<double> step_seconds;  ///< of each timed step, the slowest rank's
  double seconds_to_first_step = 0;  ///< from the start of the program to the end of its first step
  std::array<double, train::kPhases> split_seconds = {};  ///< mean exclusive time a step, by Phase
  std::vector<train::StepProfile::Entry> operators;       ///< seconds a step, the longest first
  /// Of a GPU, with BenchOptions::operators; `operators` is empty then.
  std::optional<plan::DeviceTable> device_time;
  double matmul_limit_seconds = 0;
  double matmul_operations = 0;                       ///< of one rank and step
  std::int64_t tokens_a_step = 0;                     ///< of all ranks
  std::vector<std::int64_t> peak_rank_bytes;          ///< VmHWM, by rank
  std::vector<std::int64_t> peak_rank_pss_bytes;      ///< largest at the ends of a step's phases
  std::vector<std::int64_t> constant_rank_pss_bytes;  ///< without a model
  plan::MemoryPlan planned;                           ///< of what a rank takes beside those
  plan::StepTime planned_time;
  std::string planned_rates;       ///< for people: what that rests on
  std::vector<double> losses;      ///< of every step, warm-up too
  std::vector<double> grad_norms;  ///< none of updates in backward
};

/// SHA-256 of the model's config.json, for ranks to compare. Throws sherd::Error as llm::io does.
[[nodiscard]] std::string config_digest(const BenchOptions& options);

/// Trains for warm-up and timed steps and one more for memory, as the trainer does; two to four
/// more for the profile of a GPU. Weights are those of the folder, or a function of seed, name and
/// index. Collective, of ranks that have agreed (llm::setup::agree_on_start). Throws sherd::Error
/// as llm::io does, and Usage for a token file that is too short or names ids the model lacks, and
/// for a bench that would take longer than allowed.
[[nodiscard]] BenchResult bench(const BenchOptions& options, sherd::World world);

}  // namespace llm::bench
