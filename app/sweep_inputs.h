#pragma once
// What the runs of a sweep are to read, looked for before the first one begins.

#include <string>
#include <vector>

#include "llm/config/run_config.h"

namespace app {

/// A run's name and its configuration.
struct NamedConfig {
  std::string name;
  llm::config::RunConfig config;
};

/// Throws sherd::Error(InputMissing) with all paths of models and data that are not there, each
/// once, with the runs that need it. Names on a hub are fetched, once for all runs: throws as
/// HubNames does.
void require_inputs(const std::vector<NamedConfig>& runs, bool json_on_stdout);

}  // namespace app
