#pragma once
// What is checked of a run's model, on its real ranks.

#include <filesystem>
#include <optional>
#include <vector>

#include "llm/check/check_item.h"
#include "llm/config/run_config.h"
#include "llm/inputs/batch.h"
#include "llm/inputs/run_data.h"
#include "llm/model/causal_lm.h"
#include "llm/plan/run_plan.h"
#include "llm/track/progress.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"

namespace llm::check {

/// What the items work on.
struct CheckedRun {
  const config::RunConfig& config;
  const inputs::RunData& data;
  const inputs::BatchShape& shape;
  sherd::Sharded<model::CausalLm>& model;
  sherd::AdamW& optimizer;
  sherd::GradScaler* scaler;
  track::Progress* progress = nullptr;  ///< null on other ranks than the first
};

/// A digest of each unit's gathered parameters, the same on all ranks. Collective. Memory: one
/// unit.
[[nodiscard]] CheckItem ranks_agree_parameters(CheckedRun& run);

/// The loss of the first micro-batch of rank 0, computed by every rank: the same bits. Collective.
[[nodiscard]] CheckItem ranks_agree_loss(CheckedRun& run);

/// The first global batch four times at the peak rate without warm-up: the loss falls, all numbers
/// are finite, and it is as fast as planned; after the first of them a checkpoint is saved to
/// `folder` and loaded at the end, with the same loss bit for bit. Collective.
[[nodiscard]] std::vector<CheckItem> learns(CheckedRun& run, const plan::RunPlan& plan,
                                            const std::filesystem::path& folder);

/// One step on the longest micro-batch: what it takes, of the memory that there is and beside what
/// was planned. Collective.
[[nodiscard]] CheckItem memory(CheckedRun& run, const plan::RunPlan& plan,
                               const std::vector<std::int64_t>& longest_samples);

}  // namespace llm::check
