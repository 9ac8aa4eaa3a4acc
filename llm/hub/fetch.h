#pragma once
// Repositories of a hub, brought into the cache.

#include <filesystem>
#include <functional>
#include <string>

#include "llm/hub/repo.h"
#include "llm/hub/settings.h"

namespace llm::hub {

/// Told a line for people: what is fetched, how far it is, for whom it waits.
using Say = std::function<void(const std::string& line)>;

/// Fetches what a run needs of a model, unless the cache has it, and returns the folder of the
/// snapshot. Files are those of choose_model_files(); each appears in the cache when its hash is
/// what the hub said. What was begun is gone on with; other processes that fetch the same file are
/// waited for. Throws sherd::Error: what list_files() throws, CannotWrite (the cache, or too little
/// room in it), BadData (other bytes than the hub said), StorageIo; InputMissing when offline.
[[nodiscard]] std::filesystem::path fetch_model(const HubSettings& settings, const Repo& repo,
                                                const std::string& revision, const Say& say);

/// The folder of a model by its name: of the cache, else fetched. Of several processes that ask for
/// it at once one fetches. Throws as fetch_model().
[[nodiscard]] std::filesystem::path cached_or_fetched(const HubSettings& settings, const Repo& repo,
                                                      const std::string& revision, const Say& say);

/// The error of a model that is not in the cache where nothing may be fetched: it names
/// `sherd fetch`.
[[noreturn]] void refuse_uncached(const HubSettings& settings, const Repo& repo,
                                  const std::string& why);

}  // namespace llm::hub
