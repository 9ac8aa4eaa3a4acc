#include "llm/runs/sweep.h"

#include <fstream>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "files/output.h"
#include "llm/runs/run_summary.h"
#include "sherd/error.h"

namespace llm::runs {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

SweptRun run_in(const json& line) {
  SweptRun ended{{line.at("name"), line.at("ranks"), line.value("hosts", 1), {}},
                 config::from_toml(line.at("config")),
                 std::nullopt,
                 line.at("seconds"),
                 line.value("job", "")};
  if (!line.at("exit_code").is_null()) {
    ended.exit_code = line.at("exit_code").get<int>();
  }
  for (const auto& [key, value] : line.at("set").items()) {
    ended.run.set.emplace_back(key, value);
  }
  return ended;
}

// "optim.lr was 0.1, is 0.2".
std::vector<std::string> changes(const SweptRun& before, const config::SweepRun& run,
                                 const config::RunConfig& config) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& key, const auto& was, const auto& is) {
    if (was != is) {
      lines.push_back(fmt::format("{} was {}, is {}", key, was, is));
    }
  };
  add("ranks", before.run.ranks, run.ranks);
  add("hosts", before.run.hosts, run.hosts);
  const auto old = config::settings_in_common(before.config);
  const std::map<std::string, std::string> was(old.begin(), old.end());
  for (const auto& [key, value] : config::settings_in_common(config)) {
    const auto found = was.find(key);
    add(key, found == was.end() ? "absent" : found->second, value);
  }
  return lines;
}

// One that the run would resume from.
bool has_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder / "checkpoints", ignored)) {
    if (fs::exists(entry.path() / "manifest.json", ignored)) {
      return true;
    }
  }
  return false;
}

[[noreturn]] void refuse(const fs::path& file, const std::string& why) {
  throw sherd::Error(
      sherd::ExitCode::BadData,
      fmt::format("{}: not the record of a sweep: {}. Delete it with the folders of its runs, or "
                  "give the sweep another output.",
                  file.string(), why));
}

}  // namespace

SweepRecords::SweepRecords(fs::path output) : output_(std::move(output)) {
  std::error_code fault;
  fs::create_directories(output_, fault);
  if (fault) {
    throw sherd::Error(sherd::ExitCode::CannotWrite,
                       fmt::format("cannot make the folder '{}' of the sweep: {}. Set output.",
                                   output_.string(), fault.message()));
  }
  const fs::path file = output_ / "sweep.json";
  if (!fs::is_regular_file(file)) {
    return;
  }
  try {
    const json record = sherd::files::read_json_object(file.string());
    for (const json& line : record.at("runs")) {
      SweptRun ended = run_in(line);
      runs_.insert_or_assign(ended.run.name, std::move(ended));
    }
  } catch (const std::invalid_argument& error) {
    refuse(file, error.what());
  } catch (const json::exception& error) {
    refuse(file, error.what());
  }
}

bool SweepRecords::is_done(const config::SweepRun& run, const config::RunConfig& config) const {
  const auto found = runs_.find(run.name);
  if (found == runs_.end()) {
    return false;
  }
  const fs::path folder = output_ / run.name;
  // A run that was only begun or submitted has left no exit code here, but its summary says whether
  // it has ended well.
  const bool is_done = found->second.exit_code.value_or(0) == 0 &&
                       end_in_summary(folder / "summary.json") == "finished";
  const auto lines = changes(found->second, run, config);
  if (!lines.empty() && (is_done || has_checkpoint(folder))) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("no run was started: the run '{}' was {} with other settings: {}. Give the "
                    "former settings, delete its folder {}, or give the sweep another output (of a "
                    "recipe: --train.output).",
                    run.name, is_done ? "made" : "begun", fmt::join(lines, ", "), folder.string()));
  }
  return is_done;
}

std::string SweepRecords::job_of(const config::SweepRun& run) const {
  const auto found = runs_.find(run.name);
  return found == runs_.end() ? "" : found->second.job;
}

fs::path SweepRecords::code_file_of(const config::SweepRun& run) const {
  return output_ / (run.name + ".code");
}

std::optional<int> SweepRecords::failure_of_job(const config::SweepRun& run,
                                                const config::RunConfig& config) const {
  const auto found = runs_.find(run.name);
  std::ifstream file(code_file_of(run));
  int code = 0;
  return found != runs_.end() && file >> code && code != 0 &&
                 changes(found->second, run, config).empty()
             ? std::optional(code)
             : std::nullopt;
}

void SweepRecords::add(SweptRun ended) {
  runs_.insert_or_assign(ended.run.name, std::move(ended));
  nlohmann::ordered_json record = {{"runs", nlohmann::ordered_json::array()}};
  for (const auto& [name, one] : runs_) {
    json set = json::object();
    for (const auto& [key, value] : one.run.set) {
      set[key] = value;
    }
    record["runs"].push_back({{"name", name},
                              {"ranks", one.run.ranks},
                              {"hosts", one.run.hosts},
                              {"set", set},
                              {"config", config::to_toml(one.config)},
                              {"exit_code", one.exit_code ? json(*one.exit_code) : json()},
                              {"seconds", one.seconds},
                              {"job", one.job}});
  }
  sherd::files::write_file((output_ / "sweep.json").string(), record.dump(2) + "\n");
}

}  // namespace llm::runs
