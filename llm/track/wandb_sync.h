#pragma once
// `wandb sync`, the user's own program.

#include <chrono>
#include <string>

namespace llm::track {

/// "wandb sync runs/a/wandb/offline-run-…"
[[nodiscard]] std::string sync_command(const std::string& folder);

/// Runs that, with this process's environment and its standard error for all that it prints, and
/// kills it after `limit`. Returns what is to be said of it.
[[nodiscard]] std::string run_sync(const std::string& folder, std::chrono::seconds limit);

}  // namespace llm::track
