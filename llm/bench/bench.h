#pragma once
// How fast this machine trains a model: `sherd bench`.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llm/bench/bench_options.h"
#include "llm/plan/device_table.h"
#include "llm/plan/memory_plan.h"
#include "llm/plan/step_time.h"
#include "llm/train/step_profile.h"
#include "ops/attention_kernel.h"
#include "sherd/world.h"

namespace llm::bench {

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
