#pragma once
// Names on a hub, ORG/NAME, in a configuration.

#include "app/rank.h"
#include "llm/config/run_config.h"

namespace app {

struct HubNameOptions {
  bool may_fetch = true;        ///< else only the cache is looked into
  bool json_on_stdout = false;  ///< lines for people go to standard error
};

/// Puts the folder of the hub's cache in the place of a name in model.path. A path that is there,
/// or whose parent is, is no such name. Throws sherd::Error: InputMissing for a name that may not
/// be fetched, or of a data set, and as llm::hub::cached_or_fetched().
void resolve_hub_names(llm::config::RunConfig& config, const HubNameOptions& options);

/// The same on a rank, before it meets the others: of a host's processes one fetches, while the
/// others wait for it. The first rank of a host speaks for all there; on others throws
/// llm::train::ReportedElsewhere in the place of sherd::Error.
void resolve_hub_names_on(const Rank& rank, llm::config::RunConfig& config,
                          const HubNameOptions& options = {});

}  // namespace app
