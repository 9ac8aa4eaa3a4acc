#include "app/hub_names.h"

#include <filesystem>
#include <string>

#include <fmt/core.h>

#include "launch/rank_environment.h"
#include "llm/hub/cache.h"
#include "llm/hub/fetch.h"
#include "llm/train/agreement.h"
#include "sherd/error.h"

namespace app {

namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;

constexpr const char* kRevision = "main";

bool is_name_on_hub(const std::string& path) {
  std::error_code ignored;
  return llm::hub::is_repo_name(path) && !fs::exists(path, ignored) &&
         !fs::exists(fs::path(path).parent_path(), ignored);
}

std::string model_folder(const std::string& name, const HubNameOptions& options) {
  const llm::hub::Repo repo{llm::hub::RepoKind::Model, name};
  const auto settings = llm::hub::hub_settings(sherd::launch::process_environment);
  if (options.may_fetch) {
    const auto tell = [&](const std::string& line) { say(line, options.json_on_stdout); };
    return llm::hub::cached_or_fetched(settings, repo, kRevision, tell).string();
  }
  const auto folder = llm::hub::RepoCache(settings.cache, repo).whole_model(kRevision);
  if (!folder) {
    llm::hub::refuse_uncached(settings, repo, "this command reads only");
  }
  return folder->string();
}

void refuse_data_sets(const std::vector<llm::config::DataSet>& sets, const char* key) {
  for (const llm::config::DataSet& set : sets) {
    if (is_name_on_hub(set.path) && fs::path(set.path).extension().empty()) {
      throw Error(ExitCode::InputMissing,
                  fmt::format("{} = \"{}\": there is no such file, and data sets of a hub are not "
                              "fetched yet: they are Parquet there, which Sherd does not read. "
                              "Give a file of SQuAD's JSON",
                              key, set.path));
    }
  }
}

}  // namespace

void resolve_hub_names(llm::config::RunConfig& config, const HubNameOptions& options) {
  refuse_data_sets(config.data.train, "data.train");
  refuse_data_sets(config.data.eval, "data.eval");
  const std::string name = config.model.path;
  if (!is_name_on_hub(name)) {
    return;
  }
  try {
    config.model.path = model_folder(name, options);
  } catch (const Error& error) {  // it may have been meant as a path
    throw Error(error.code(), fmt::format("model.path = \"{}\": there is no such folder, and as "
                                          "the name of a model on a hub: {}",
                                          name, error.what()));
  }
}

void resolve_hub_names_on(const Rank& rank, llm::config::RunConfig& config,
                          const HubNameOptions& options) {
  try {
    resolve_hub_names(config, options);
  } catch (const Error& error) {
    if (rank.environment().local_rank == 0) {
      throw;
    }
    throw llm::train::ReportedElsewhere(error.code(), "");
  }
}

}  // namespace app
