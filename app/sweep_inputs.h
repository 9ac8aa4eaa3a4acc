#pragma once
// Checks the inputs of all runs of a sweep before the first one begins.

#include <string>
#include <vector>

#include "llm/config/run_config.h"

namespace app {

/// A run's name and its configuration.
struct NamedConfig {
  std::string name;
  llm::config::RunConfig config;
};

/// Throws sherd::Error(InputMissing) that lists all missing paths of models and data, each once,
/// with the runs that need it. Fetches names on a hub once for all runs; throws as HubNames does.
void require_inputs(const std::vector<NamedConfig>& runs, bool json_on_stdout);

}  // namespace app
