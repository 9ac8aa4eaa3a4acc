#pragma once
// Downloads repositories of a hub into the cache.

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

/// Identity and callbacks of a process that needs a repository.
struct Asker {
  /// Shared only by the ranks of a run; empty: not a rank.
  std::string run = {};
  /// Called before it waits for another process that fetches.
  std::function<void()> on_wait = [] {};
  /// Called before it fetches itself.
  std::function<void()> on_try = [] {};
  Grown grown = {};
};

/// Compares the cache with a model on the hub, fetches the missing files that a run needs, and
/// returns the folder of the complete snapshot. The files are those of choose_model_files(); each
/// appears in the cache when its hash matches the hub's. Resumes interrupted downloads, and waits
/// for other processes that fetch the same file. Offline it uses only the cache. Throws
/// sherd::Error: what list_files() throws, CannotWrite (the cache, or too little room in it),
/// BadData (a wrong hash, no model), StorageIo; InputMissing when offline.
[[nodiscard]] std::filesystem::path fetch_model(const HubSettings& settings, const Wanted& wanted,
                                                const Say& say, const Grown& grown = {});

/// The same for the files of a data set, choose_data_files(), and its README and licence.
[[nodiscard]] std::filesystem::path fetch_data(const HubSettings& settings, const Wanted& wanted,
                                               const DataPart& part, const Say& say,
                                               const Grown& grown = {});

/// Returns the folder of a model: from the cache if it is complete, else downloaded. If several
/// processes need it at once, one fetches; if that fails, the others throw FailedElsewhere. Throws
/// as fetch_model().
[[nodiscard]] std::filesystem::path cached_or_fetched_model(const HubSettings& settings,
                                                            const Wanted& wanted, const Say& say,
                                                            const Asker& asker = {});

/// The same for the files of a part of a data set.
[[nodiscard]] std::vector<std::filesystem::path> cached_or_fetched_data(const HubSettings& settings,
                                                                        const Wanted& wanted,
                                                                        const DataPart& part,
                                                                        const Say& say,
                                                                        const Asker& asker = {});

/// Uses only the cache. Throws as choose_data_files(), and InputMissing as refuse_uncached() if the
/// cache has no such files.
[[nodiscard]] std::vector<std::filesystem::path> cached_data(const HubSettings& settings,
                                                             const Wanted& wanted,
                                                             const DataPart& part,
                                                             const std::string& why_no_fetch);

/// Throws the error for missing files when nothing may be fetched; it names `sherd fetch`.
[[noreturn]] void refuse_uncached(const HubSettings& settings, const Wanted& wanted,
                                  const std::string& why);

}  // namespace llm::hub
