#include "llm/runs/sweep.h"

#include <system_error>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "files/output.h"
#include "sherd/error.h"

namespace llm::runs {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

SweptRun run_in(const json& line) {
  SweptRun ended{{line.at("name"), line.at("ranks"), {}}, line.at("exit_code"), line.at("seconds")};
  for (const auto& [key, value] : line.at("set").items()) {
    ended.run.set.emplace_back(key, value);
  }
  return ended;
}

bool are_the_same(const config::SweepRun& a, const config::SweepRun& b) {
  return a.ranks == b.ranks &&
         std::map(a.set.begin(), a.set.end()) == std::map(b.set.begin(), b.set.end());
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
  } catch (const json::exception& error) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       fmt::format("{}: not the record of a sweep: {}. Delete it: runs that have "
                                   "ended are then made again only where their folders are gone.",
                                   file.string(), error.what()));
  }
}

bool SweepRecords::is_done(const config::SweepRun& run) const {
  const auto found = runs_.find(run.name);
  if (found == runs_.end() || found->second.exit_code != 0 ||
      !fs::is_regular_file(output_ / run.name / "summary.json")) {
    return false;
  }
  if (!are_the_same(found->second.run, run)) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("the run '{}' was made with other settings. Give it another name, or delete "
                    "its folder {}.",
                    run.name, (output_ / run.name).string()));
  }
  return true;
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
                              {"set", set},
                              {"exit_code", one.exit_code},
                              {"seconds", one.seconds}});
  }
  sherd::files::write_file((output_ / "sweep.json").string(), record.dump(2) + "\n");
}

}  // namespace llm::runs
