#include "app/hub_names.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "launch/rank_environment.h"
#include "llm/hub/cache.h"
#include "llm/hub/failure_note.h"
#include "llm/hub/fetch.h"
#include "llm/inputs/data_file.h"
#include "sherd/error.h"

namespace app {

namespace {

namespace fs = std::filesystem;
using llm::hub::RepoKind;
using llm::hub::Wanted;
using llm::setup::ReportedElsewhere;
using sherd::Error;
using sherd::ExitCode;

constexpr const char* kReadsOnly = "this command reads only";

// A value shared by the ranks of a run and different for other runs.
std::string run_of(const Rank* rank) {
  if (rank == nullptr || rank->environment().launcher == sherd::launch::Launcher::Alone) {
    return "";
  }
  const auto& environment = rank->environment();
  return fmt::format("{}:{}", environment.master_address.value_or(""),
                     environment.master_port.value_or(0));
}

llm::hub::HubSettings settings_now() {
  return llm::hub::hub_settings(sherd::launch::process_environment);
}

}  // namespace

bool is_name_on_hub(const std::string& path) {
  std::error_code ignored;
  return llm::hub::is_repo_name(path) && !fs::exists(path, ignored) &&
         !fs::exists(fs::path(path).parent_path(), ignored);
}

bool is_data_on_hub(const std::string& path) {
  constexpr std::array<std::string_view, 7> kFiles{".json", ".jsonl", ".ndjson", ".parquet",
                                                   ".csv",  ".tsv",   ".txt"};
  std::error_code ignored;
  const std::string name = llm::hub::named_data(path).repo;
  return is_name_on_hub(name) && !fs::exists(path, ignored) &&
         std::none_of(kFiles.begin(), kFiles.end(),
                      [&](std::string_view end) { return name.ends_with(end); });
}

llm::hub::Grown counted_in_megabytes(llm::track::Progress* progress) {
  if (progress == nullptr) {
    return {};
  }
  return [progress](const std::string& file, std::uint64_t done_bytes, std::uint64_t size_bytes) {
    const auto megabytes = [](std::uint64_t bytes) {
      constexpr std::uint64_t kMegabyte = 1'000'000;
      return static_cast<std::int64_t>(bytes / kMegabyte);
    };
    progress->count(megabytes(done_bytes), megabytes(size_bytes), "MB of " + file);
  };
}

HubNames::HubNames(const HubNameOptions& options, const Rank* rank)
    : options_(options), rank_(rank) {}

// Adds to an error what was looked for, since the name may have been meant as a path.
template <class Work>
auto HubNames::for_all(const std::string& key, const std::string& name, const char* what,
                       const Work& work) {
  const llm::track::Working fetching(options_.progress, "fetching " + name);
  const std::string run = run_of(rank_);
  tried_ = false;
  const llm::hub::Asker asker{
      run,
      [&] {
        if (rank_ == nullptr || rank_->environment().local_rank == 0) {
          tell(fmt::format("{}: waiting for another process to fetch it", name));
        }
      },
      [&] { tried_ = true; }, counted_in_megabytes(options_.progress)};
  try {
    return work(asker);
  } catch (const Error& error) {
    const auto* other = dynamic_cast<const llm::hub::FailedElsewhere*>(&error);
    const bool is_told = other != nullptr
                             ? !run.empty() && other->run() == run
                             : rank_ != nullptr && !tried_ && rank_->environment().local_rank != 0;
    if (is_told) {
      throw ReportedElsewhere(error.code(), "");
    }
    throw Error(error.code(), fmt::format("{} = \"{}\": there is no such {}, and as the name of a "
                                          "{} on a hub: {}",
                                          key, name, what,
                                          std::string_view(what) == "folder" ? "model" : "data set",
                                          error.what()));
  }
}

void HubNames::tell(const std::string& line) const {
  if (options_.progress != nullptr) {
    options_.progress->say(line);
  } else {
    say(line, options_.json_on_stdout);
  }
}

void HubNames::resolve(llm::config::RunConfig& config) {
  resolve_list(config.data.train, "data.train", /*trains=*/true);
  resolve_list(config.data.eval, "data.eval", /*trains=*/false);
  resolve_model(config.model.path, "model.path");
}

void HubNames::resolve_model(std::string& path, const std::string& key,
                             const std::string& revision) {
  if (!is_name_on_hub(path)) {
    return;
  }
  Wanted wanted{{RepoKind::Model, path}};
  if (!revision.empty()) {
    wanted.revision = revision;
  }
  const fs::path folder = for_all(key, path, "folder", [&](const llm::hub::Asker& asker) {
    const auto settings = settings_now();
    if (options_.may_fetch) {
      return llm::hub::cached_or_fetched_model(
          settings, wanted, [this](const std::string& line) { tell(line); }, asker);
    }
    const llm::hub::RepoCache cache(settings.cache, wanted.repo);
    if (auto found = cache.whole_model(wanted.revision)) {
      return *std::move(found);
    }
    llm::hub::refuse_uncached(settings, wanted, kReadsOnly);
  });
  commits_.emplace_back(
      fmt::format("the commit of {0} (`sherd fetch {0}` on each host downloads the newest)", path),
      folder.filename().string());
  path = folder.string();
}

void HubNames::resolve_data(std::string& path, const std::string& key) {
  if (!is_data_on_hub(path)) {
    return;
  }
  path = path_of_split(path, key, "validation");
}

// All files of a split, which are one data set.
std::string HubNames::path_of_split(const std::string& name, const std::string& key,
                                    const char* usual_split) {
  const std::vector<std::string> files = data_files(name, key, usual_split);
  const std::optional<std::string> all =
      files.size() == 1 ? std::optional(files.front()) : llm::inputs::pattern_of(files);
  if (!all) {
    throw Error(ExitCode::Usage, fmt::format("{}: {} is in {} files, and no pattern with one `*` "
                                             "matches only these: give one of them, such as {}",
                                             key, name, files.size(), files.front()));
  }
  return *all;
}

void HubNames::resolve_list(std::vector<llm::config::DataSet>& sets, const std::string& key,
                            bool trains) {
  for (llm::config::DataSet& set : sets) {
    if (is_data_on_hub(set.path)) {
      set.path = path_of_split(set.path, key, trains ? "train" : "validation");
    }
  }
}

std::vector<std::string> HubNames::data_files(const std::string& name, const std::string& key,
                                              const char* usual_split) {
  llm::hub::NamedData named = llm::hub::named_data(name);
  if (named.part.split.empty()) {
    named.part.split = usual_split;
  }
  const Wanted wanted{{RepoKind::Dataset, named.repo}};
  std::vector<std::string> files;
  try {
    for (const fs::path& path : for_all(key, name, "file", [&](const llm::hub::Asker& asker) {
           const auto settings = settings_now();
           return options_.may_fetch
                      ? llm::hub::cached_or_fetched_data(
                            settings, wanted, named.part,
                            [this](const std::string& line) { tell(line); }, asker)
                      : llm::hub::cached_data(settings, wanted, named.part, kReadsOnly);
         })) {
      files.push_back(path.string());
    }
  } catch (const Error& error) {
    if (!options_.data_may_be_missing || error.code() != ExitCode::InputMissing) {
      throw;
    }
    tell(error.what());
    files = {name};
  }
  return files;
}

void HubNames::require_same(sherd::World& world) const {
  llm::setup::require_agreement(world, commits_);
}

}  // namespace app
