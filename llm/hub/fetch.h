#pragma once
// Repositories of a hub, brought into the cache.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "llm/hub/data_files.h"
#include "llm/hub/repo.h"
#include "llm/hub/settings.h"

namespace llm::hub {

/// A repository at a revision.
struct Wanted {
  Repo repo;
  std::string revision = "main";
};

/// What a process that needs a repository says of itself to others on its host.
struct Asker {
  /// Known to the ranks of a run and to nobody else; empty: no rank.
  std::string run = {};
  /// Called before it waits for another process that fetches.
  std::function<void()> on_wait = [] {};
  /// Called before it fetches itself.
  std::function<void()> on_try = [] {};
  Grown grown = {};
};

/// Compares the cache with what the hub has of a model, fetches what is missing of what a run
/// needs, and returns the folder of the snapshot, which is whole. Files are those of
/// choose_model_files(); each appears in the cache when its hash is what the hub said. What was
/// begun is gone on with; other processes that fetch the same file are waited for. Offline the
/// cache is all there is. Throws sherd::Error: what list_files() throws, CannotWrite (the cache, or
/// too little room in it), BadData (other bytes than the hub said, no model), StorageIo;
/// InputMissing when offline.
[[nodiscard]] std::filesystem::path fetch_model(const HubSettings& settings, const Wanted& wanted,
                                                const Say& say, const Grown& grown = {});

/// The same of files of a data set, choose_data_files(), and its README and licence.
[[nodiscard]] std::filesystem::path fetch_data(const HubSettings& settings, const Wanted& wanted,
                                               const DataPart& part, const Say& say,
                                               const Grown& grown = {});

/// The folder of a model by its name: of the cache, if it has all that a run needs, else fetched.
/// Of several processes that ask for it at once one fetches; where that fails, the others throw
/// FailedElsewhere. Throws as fetch_model().
[[nodiscard]] std::filesystem::path cached_or_fetched_model(const HubSettings& settings,
                                                            const Wanted& wanted, const Say& say,
                                                            const Asker& asker = {});

/// The same of the files of a part of a data set.
[[nodiscard]] std::vector<std::filesystem::path> cached_or_fetched_data(const HubSettings& settings,
                                                                        const Wanted& wanted,
                                                                        const DataPart& part,
                                                                        const Say& say,
                                                                        const Asker& asker = {});

/// Those of the cache alone. Throws as choose_data_files(); InputMissing as refuse_uncached() where
/// the cache has none.
[[nodiscard]] std::vector<std::filesystem::path> cached_data(const HubSettings& settings,
                                                             const Wanted& wanted,
                                                             const DataPart& part,
                                                             const std::string& why_no_fetch);

/// The error of what is not in the cache where nothing may be fetched: it names `sherd fetch`.
[[noreturn]] void refuse_uncached(const HubSettings& settings, const Wanted& wanted,
                                  const std::string& why);

}  // namespace llm::hub
