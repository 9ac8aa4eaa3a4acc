#pragma once
// The objective that a run's configuration asks for.

#include <memory>

#include "llm/config/run_config.h"
#include "sherd/custom.h"

namespace llm::setup {

/// The loss of train.objective; null: cross-entropy of the supervised tokens.
[[nodiscard]] std::unique_ptr<sherd::Objective> objective_of(const config::RunConfig& config);

/// True if the reference model of a run is its own with the adapter off, so that nothing is kept of
/// it: the adapter is fresh, and no embedding or other module is trained whole next to it.
[[nodiscard]] bool reference_is_base(const config::RunConfig& config);

}  // namespace llm::setup
