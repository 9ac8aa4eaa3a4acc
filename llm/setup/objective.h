#pragma once
// What a run's configuration asks the model to learn.

#include <memory>

#include "llm/config/run_config.h"
#include "sherd/objective.h"

namespace llm::setup {

/// The loss of train.objective; null: cross-entropy of the supervised tokens.
[[nodiscard]] std::unique_ptr<sherd::Objective> objective_of(const config::RunConfig& config);

}  // namespace llm::setup
