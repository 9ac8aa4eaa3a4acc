#pragma once
// The lines that a run prints at its start and its end.

#include <cstdint>
#include <optional>
#include <string>

#include "llm/config/run_config.h"
#include "llm/inputs/batch.h"
#include "llm/inputs/run_data.h"
#include "llm/setup/load_model.h"
#include "llm/train/resume.h"
#include "llm/train/train_step.h"

namespace llm::train {

/// "model: models/small: llama, 134.5M parameters, float32, context 2048 tokens, full_shard"
[[nodiscard]] std::string model_line(const config::RunConfig& config,
                                     const setup::ModelShape& shape);

/// "steps: 12 of 8 samples (3 epochs of 4 steps); each rank computes 2 x 2 samples per step"
[[nodiscard]] std::string steps_line(const inputs::RunLength& length,
                                     const inputs::BatchShape& shape);

/// "memory: at least 2.1 GiB per rank between steps; 14.2 GiB available on this host"
[[nodiscard]] std::string memory_line(std::int64_t rank_bytes, std::int64_t available_bytes);

/// "on the host: masters and moments, 1.5 GiB a rank, pinned; and activations"
[[nodiscard]] std::string host_line(const config::OffloadSection& offload, std::int64_t rank_bytes);
/// "on the disk: masters and moments in 'scratch', 1.5 GiB a rank, moved by io_uring, direct"
[[nodiscard]] std::string offload_line(const config::RunConfig& config, std::int64_t rank_bytes,
                                       const std::string& transfers);

/// "resumed from runs/a/checkpoints/step-00000004, step 4 of 8", and the line of what has changed
/// since.
[[nodiscard]] std::string resumed_lines(const Candidate& start, std::int64_t total_steps);
/// The same before the run: "resumes from …".
[[nodiscard]] std::string goes_on_lines(const Candidate& start);

/// How the steps of this process went. Only steps with supervised tokens have a loss, and of these
/// only the ones that were not skipped.
struct StepsMade {
  std::int64_t steps = 0;
  double seconds = 0;
  std::optional<double> first_loss = std::nullopt;
  std::optional<double> last_loss = std::nullopt;
  double worst_loss = 0;        ///< the highest; not finite where one was not
  bool learns_nothing = false;  ///< a step's gradient was 0

  /// Counts one more step.
  void add(const StepOutcome& step);
};

/// "done: 12 steps in 00:01:10, loss 2.3456 -> 1.2345"; without losses it says that nothing was
/// learned.
[[nodiscard]] std::string done_line(const StepsMade& made);

/// "warning: this run has diverged: …": the loss rose far above the first one or is no number, or
/// the gradient became 0; empty otherwise.
[[nodiscard]] std::string diverged_line(const StepsMade& made);

/// The commands that come next; `checkpoint`: the newest one's folder, empty if there is none.
[[nodiscard]] std::string next_lines(const config::RunConfig& config,
                                     const std::string& checkpoint);

}  // namespace llm::train
