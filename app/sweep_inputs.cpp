#include "app/sweep_inputs.h"

#include <filesystem>
#include <map>
#include <set>

#include <fmt/core.h>

#include "app/hub_names.h"
#include "app/live_line.h"
#include "llm/inputs/data_file.h"
#include "sherd/error.h"

namespace app {

namespace {

// A `*` in its name may stand for several.
bool is_there(const std::string& path) {
  std::error_code ignored;
  try {
    return std::filesystem::exists(llm::inputs::files_of(path).at(0), ignored);
  } catch (const sherd::Error&) {
    return false;
  }
}

void add_missing(const std::vector<llm::config::DataSet>& sets, const char* key,
                 std::vector<std::string>& missing) {
  for (std::size_t i = 0; i < sets.size(); ++i) {
    if (!is_data_on_hub(sets[i].path) && !is_there(sets[i].path)) {
      missing.push_back(
          fmt::format("{}[{}].path = \"{}\": there is no such file", key, i, sets[i].path));
    }
  }
}

std::vector<std::string> missing_paths(const llm::config::RunConfig& config) {
  std::vector<std::string> missing;
  std::error_code ignored;
  const std::string& model = config.model.path;
  if (!is_name_on_hub(model) && !std::filesystem::exists(model, ignored)) {
    missing.push_back(fmt::format("model.path = \"{}\": there is no such folder", model));
  }
  add_missing(config.data.train, "data.train", missing);
  add_missing(config.data.eval, "data.eval", missing);
  return missing;
}

// Fetches what a run reads from a hub before the run begins.
void fetch_names(const std::vector<NamedConfig>& runs, bool json_on_stdout) {
  llm::track::Progress progress(output_for_people(json_on_stdout));
  HubNames names({.json_on_stdout = json_on_stdout, .progress = &progress});
  std::set<std::vector<std::string>> fetched;
  for (const NamedConfig& run : runs) {
    llm::config::RunConfig config = run.config;
    std::vector<std::string> paths = {config.model.path};
    for (const auto* sets : {&config.data.train, &config.data.eval}) {
      paths.emplace_back();  // training and evaluation use different splits
      for (const llm::config::DataSet& set : *sets) {
        paths.push_back(set.path);
      }
    }
    if (fetched.insert(paths).second) {
      names.resolve(config);
    }
  }
}

}  // namespace

void require_inputs(const std::vector<NamedConfig>& runs, bool json_on_stdout) {
  std::map<std::string, std::string> without;  // missing paths, and the runs that need them
  for (const NamedConfig& run : runs) {
    for (const std::string& missing : missing_paths(run.config)) {
      std::string& names = without[missing];
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", run.name);
    }
  }
  if (without.empty()) {
    return fetch_names(runs, json_on_stdout);
  }
  std::string lines;
  for (const auto& [missing, names] : without) {
    lines += fmt::format("\n  {} (of {})", missing, names);
  }
  throw sherd::Error(
      sherd::ExitCode::InputMissing,
      "no run was started because files are missing. Paths are relative to the current folder:" +
          lines);
}

}  // namespace app
