#pragma once
// What a run's configuration asks the model to learn.

#include <memory>

#include "llm/config/run_config.h"
#include "sherd/objective.h"

namespace llm::setup {

/// The loss of train.objective; null: cross-entropy of the supervised tokens.
[[nodiscard]] std::unique_ptr<sherd::Objective> objective_of(const config::RunConfig& config);

/// Whether the reference model of a run is its own with the adapter off, so that nothing is kept of
/// it. Not where an embedding or another module is trained whole beside the adapter.
[[nodiscard]] bool reference_is_base(const config::RunConfig& config);

}  // namespace llm::setup
