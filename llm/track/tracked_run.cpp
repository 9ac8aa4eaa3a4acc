#include "llm/track/tracked_run.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "files/output.h"
#include "llm/config/fields.h"

namespace llm::track {

namespace {

namespace fs = std::filesystem;

// "data.train[0].path" as "data.train.0.path": trackers take no brackets.
std::string without_brackets(std::string key) {
  std::erase(key, ']');
  std::replace(key.begin(), key.end(), '[', '.');
  return key;
}

// A value as TOML prints it is JSON too, but for words such as `inf` and bytes that are no UTF-8.
std::string as_json(const std::string& toml) {
  using nlohmann::json;
  return json::accept(toml) ? toml
                            : json(toml).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string TrackedRun::choose(const std::string& given, const char* variable,
                               const std::string& otherwise) const {
  if (!given.empty()) {
    return given;
  }
  const std::string of_environment = environment(variable).value_or("");
  return of_environment.empty() ? otherwise : of_environment;
}

TrackedRun tracked_run(const config::RunConfig& config, sherd::launch::EnvLookup environment) {
  const std::string folder =
      (fs::path(config.train.output) / "").lexically_normal().parent_path().filename().string();
  return {config, config.log.name.empty() ? folder : config.log.name, std::move(environment)};
}

std::vector<std::pair<std::string, std::string>> settings_of(const config::RunConfig& config) {
  config::RunConfig copy = config;
  std::vector<std::pair<std::string, std::string>> settings;
  for (const config::Leaf& leaf : config::leaves(copy)) {
    settings.emplace_back(without_brackets(leaf.key), as_json(leaf.text()));
  }
  return settings;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

std::string earlier_id(const TrackedRun& run, const std::string& file, std::int64_t steps_done) {
  std::string id;
  if (steps_done > 0) {
    std::ifstream kept(fs::path(run.config.train.output) / file);
    std::getline(kept, id);
  }
  return id;
}

void keep_id(const TrackedRun& run, const std::string& file, const std::string& id) {
  sherd::files::write_file((fs::path(run.config.train.output) / file).string(), id + "\n");
}

}  // namespace llm::track
