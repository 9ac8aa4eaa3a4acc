#pragma once
// The lines that a run prints at its start and its end.

#include <cstdint>
#include <optional>
#include <string>

#include "llm/config/run_config.h"
#include "llm/data/batch.h"
#include "llm/train/load_model.h"
#include "llm/train/run_data.h"
#include "llm/train/train_step.h"

namespace llm::train {

/// "model: models/small: llama, 134.5M parameters, float32, context 2048 tokens, full_shard"
[[nodiscard]] std::string model_line(const config::RunConfig& config, const ModelShape& shape);

/// "steps: 12 of 8 samples each, 3 epochs of 4; a rank computes 2 micro-batches of 2 a step"
[[nodiscard]] std::string steps_line(const RunLength& length, const data::BatchShape& shape);

/// "memory: at least 2.1 GiB a rank between steps; 14.2 GiB available on this host"
[[nodiscard]] std::string memory_line(std::int64_t rank_bytes, std::int64_t available_bytes);

/// "on the host: masters and moments, 1.5 GiB a rank, pinned; and activations"
[[nodiscard]] std::string host_line(const config::OffloadSection& offload, std::int64_t rank_bytes);
/// "on the disk: masters and moments in 'scratch', 1.5 GiB a rank, moved by io_uring, direct"
[[nodiscard]] std::string offload_line(const config::RunConfig& config, std::int64_t rank_bytes,
                                       const std::string& transfers);

/// How the steps of this process went. Only steps with supervised tokens have a loss.
struct StepsMade {
  std::int64_t steps = 0;
  double seconds = 0;
  std::optional<double> first_loss = std::nullopt;
  std::optional<double> last_loss = std::nullopt;

  /// Counts one more step.
  void add(const StepOutcome& step);
};

/// "done: 12 steps in 00:01:10, loss 2.3456 -> 1.2345"; without losses it says that nothing was
/// learned.
[[nodiscard]] std::string done_line(const StepsMade& made);

/// The commands that come next; `checkpoint`: the newest one's folder, empty if there is none.
[[nodiscard]] std::string next_lines(const config::RunConfig& config,
                                     const std::string& checkpoint);

}  // namespace llm::train
