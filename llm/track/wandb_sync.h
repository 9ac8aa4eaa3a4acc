#pragma once
// `wandb sync`, the user's own program.

#include <chrono>
#include <functional>
#include <string>

namespace llm::track {

/// "wandb sync runs/a/wandb/offline-run-…", as a shell reads it.
[[nodiscard]] std::string sync_command(const std::string& folder);

/// Runs that in a session of its own, away from the terminal, with this process's standard error
/// for all that it prints and its environment but for the secrets of others. Kills it after
/// `limit`, or as soon as `stop_requested`. Returns what is to be said of it.
[[nodiscard]] std::string run_sync(const std::string& folder, std::chrono::milliseconds limit,
                                   const std::function<bool()>& stop_requested);

}  // namespace llm::track
