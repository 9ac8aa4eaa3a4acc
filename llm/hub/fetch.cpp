#include "llm/hub/fetch.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "llm/hub/cache.h"
#include "llm/hub/choice.h"
#include "llm/hub/failure_note.h"
#include "llm/hub/transfer.h"
#include "llm/hub/weight_index.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;
using Paths = std::vector<fs::path>;

constexpr const char* kOffline = "HF_HUB_OFFLINE is set";

// Lists the files that exist: of the files of one split some may be in the cache and others
// not.
std::vector<std::string> paths_in(const fs::path& snapshot) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(snapshot, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (fs::is_regular_file(entry->path(), ignored)) {  // what a link leads to
      paths.push_back(entry->path().lexically_relative(snapshot).string());
    }
  }
  return paths;
}

Paths below(const fs::path& snapshot, const std::vector<std::string>& names) {
  Paths paths;
  for (const std::string& name : names) {
    paths.push_back(snapshot / name);
  }
  return paths;
}

// None where the cache does not have it.
std::optional<Paths> data_in_cache(const HubSettings& settings, const Wanted& wanted,
                                   const DataPart& part) {
  const RepoCache cache(settings.cache, wanted.repo);
  const auto commit = cache.commit_of(wanted.revision);
  if (!commit) {
    return std::nullopt;
  }
  const fs::path snapshot = cache.snapshot(*commit);
  try {
    return below(snapshot, choose_data_files(wanted.repo, paths_in(snapshot), part));
  } catch (const Error&) {
    return std::nullopt;  // the hub may have it
  }
}

// `look` searches the cache; `fetch` downloads into it. `part` names the requested part.
template <class Look, class Fetch>
auto cached_or_fetched(const HubSettings& settings, const Wanted& wanted, const std::string& part,
                       const Asker& asker, const Look& look, const Fetch& fetch) {
  if (const auto found = look()) {
    return *found;
  }
  if (settings.offline) {
    refuse_uncached(settings, wanted, kOffline);
  }
  const auto lock = RepoCache(settings.cache, wanted.repo).lock("sherd", asker.on_wait);
  if (const auto found = look()) {
    return *found;
  }
  const std::string attempt = fmt::format("{}{} at {} of {}", wanted.repo.name, part,
                                          wanted.revision, shown_place(settings));
  take_over_failure(lock.get(), attempt);
  asker.on_try();
  try {
    return fetch();
  } catch (const Error& error) {
    note_failure(lock.get(), attempt, asker.run, error);
    throw;
  }
}

}  // namespace

void refuse_uncached(const HubSettings& settings, const Wanted& wanted, const std::string& why) {
  const bool is_main = wanted.revision == "main";
  throw Error(ExitCode::InputMissing,
              fmt::format("{}{} is incomplete in the cache {}, and {}. Fetch it on a host with a "
                          "network: sherd fetch {}{}{}",
                          wanted.repo.name, is_main ? "" : " at " + wanted.revision,
                          settings.cache.string(), why, wanted.repo.name,
                          wanted.repo.kind == RepoKind::Dataset ? " --dataset" : "",
                          is_main ? "" : " --revision " + wanted.revision));
}

fs::path fetch_model(const HubSettings& settings, const Wanted& wanted, const Say& say,
                     const Grown& grown) {
  check_revision(wanted.revision);
  if (settings.offline) {
    if (auto folder = RepoCache(settings.cache, wanted.repo).whole_model(wanted.revision)) {
      return *std::move(folder);
    }
    refuse_uncached(settings, wanted, kOffline);
  }
  Transfer transfer(settings, wanted.repo, wanted.revision, say, grown);
  const std::vector<HubFile>& listed = transfer.listing().files;
  const HubFile* index = find_file(listed, kWeightIndex);
  const Choice choice = choose_model_files(
      wanted.repo, listed,
      index == nullptr ? std::set<std::string>() : weight_files(transfer.bring(*index)));
  if (!choice.pickles.empty()) {
    say(fmt::format("left out, since pickles can run code when read: {}",
                    fmt::join(choice.pickles, ", ")));
  }
  transfer.bring_all(choice.files);
  return transfer.finish();
}

fs::path fetch_data(const HubSettings& settings, const Wanted& wanted, const DataPart& part,
                    const Say& say, const Grown& grown) {
  check_revision(wanted.revision);
  if (settings.offline) {
    static_cast<void>(cached_data(settings, wanted, part, kOffline));
    const RepoCache cache(settings.cache, wanted.repo);
    return cache.snapshot(*cache.commit_of(wanted.revision));
  }
  Transfer transfer(settings, wanted.repo, wanted.revision, say, grown);
  std::vector<std::string> paths;
  for (const HubFile& file : transfer.listing().files) {
    paths.push_back(file.path);
  }
  std::vector<HubFile> files;
  for (const std::string& path : choose_data_files(wanted.repo, paths, part)) {
    files.push_back(*find_file(transfer.listing().files, path));
  }
  for (const HubFile& file : transfer.listing().files) {
    if (file.path == "README.md" || file.path.starts_with("LICENSE")) {
      files.push_back(file);
    }
  }
  transfer.bring_all(files);
  return transfer.finish();
}

fs::path cached_or_fetched_model(const HubSettings& settings, const Wanted& wanted, const Say& say,
                                 const Asker& asker) {
  const RepoCache cache(settings.cache, wanted.repo);
  return cached_or_fetched(
      settings, wanted, "", asker, [&] { return cache.whole_model(wanted.revision); },
      [&] { return fetch_model(settings, wanted, say, asker.grown); });
}

Paths cached_or_fetched_data(const HubSettings& settings, const Wanted& wanted,
                             const DataPart& part, const Say& say, const Asker& asker) {
  const auto look = [&] { return data_in_cache(settings, wanted, part); };
  return cached_or_fetched(
      settings, wanted, ":" + part.config + "/" + part.split, asker, look, [&] {
        const fs::path folder = fetch_data(settings, wanted, part, say, asker.grown);
        return below(folder, choose_data_files(wanted.repo, paths_in(folder), part));
      });
}

Paths cached_data(const HubSettings& settings, const Wanted& wanted, const DataPart& part,
                  const std::string& why_no_fetch) {
  if (auto found = data_in_cache(settings, wanted, part)) {
    return *std::move(found);
  }
  refuse_uncached(settings, wanted, why_no_fetch);
}

}  // namespace llm::hub
