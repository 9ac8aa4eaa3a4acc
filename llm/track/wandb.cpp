#include "llm/track/wandb.h"

#include <array>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <utility>

#include <fmt/core.h>

#include "files/folder.h"
#include "launch/random_hex.h"
#include "launch/stop_request.h"
#include "llm/track/step_record.h"
#include "llm/track/wandb_records.h"
#include "llm/track/wandb_sync.h"
#include "sherd/error.h"

namespace llm::track {

namespace {

namespace fs = std::filesystem;

constexpr const char* kWandbIdFile = "wandb-run-id";
constexpr std::chrono::minutes kSyncLimit{5};

std::string checked_id(const std::string& id) {
  if (id.find_first_of("/\\#?%:") != std::string::npos || id.size() > 128) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       "WANDB_RUN_ID = '" + id +
                           "' cannot name a run: at most 128 characters, none of / \\ # ? % :");
  }
  return id;
}

std::vector<std::string> tags_of(const TrackedRun& run) {
  if (!run.config.log.tags.empty()) {
    return run.config.log.tags;
  }
  std::vector<std::string> tags;
  std::istringstream words(run.environment("WANDB_TAGS").value_or(""));
  for (std::string word; std::getline(words, word, ',');) {
    if (!word.empty()) {
      tags.push_back(word);
    }
  }
  return tags;
}

// "20261124_151742", in local time, as W&B has it.
std::string time_text(double unix_seconds) {
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &local);
  return text.data();
}

// A folder that is not there yet: the sessions of a run have the same identifier.
std::string new_folder(const std::string& root, const std::string& id, double unix_seconds) {
  const fs::path runs = fs::path(root) / "wandb";
  sherd::files::make_folder(runs.string());
  for (;; unix_seconds += 1) {
    const fs::path folder = runs / fmt::format("offline-run-{}-{}", time_text(unix_seconds), id);
    std::error_code error;
    if (fs::create_directory(folder, error)) {
      sherd::files::make_folder((folder / "files").string());
      return folder.string();
    }
    if (error) {
      throw sherd::Error(sherd::ExitCode::CannotWrite,
                         "cannot make the folder " + folder.string() + ": " + error.message());
    }
  }
}

}  // namespace

bool wandb_is_disabled(const TrackedRun& run) {
  const std::string off = run.environment("WANDB_DISABLED").value_or("");
  return run.environment("WANDB_MODE").value_or("") == "disabled" || off == "true" || off == "1";
}

Wandb::Wandb(const config::Sink& sink, const TrackedRun& run)
    : run_(run),
      sync_(sink.sync),
      root_(run.choose(sink.path, "WANDB_DIR", run.config.train.output)),
      given_id_(checked_id(run.environment("WANDB_RUN_ID").value_or(""))) {}

std::string Wandb::place() const {
  const bool is_asked_online = run_.environment("WANDB_MODE").value_or("") == "online";
  return "offline, in " + (fs::path(root_) / "wandb").string() +
         (is_asked_online && !sync_
              ? " (WANDB_MODE=online: nothing is sent before the end; sync = true of its sink "
                "uploads the run then)"
              : "");
}

void Wandb::begin(std::int64_t steps_done, const EarlierPoints& earlier) {
  began_unix_seconds_ = unix_seconds_now();
  std::string id = given_id_.empty() ? earlier_id(run_, kWandbIdFile, steps_done) : given_id_;
  if (id.empty()) {
    id = sherd::launch::random_hex(4);
  }
  folder_ = new_folder(root_, id, began_unix_seconds_);
  file_.emplace((fs::path(folder_) / ("run-" + id + ".wandb")).string());
  keep_id(run_, kWandbIdFile, id);
  bool has_earlier = false;
  if (earlier) {
    earlier([&](const Point& point) {
      if (!std::exchange(has_earlier, true)) {
        began_unix_seconds_ = point.unix_seconds > 0 ? point.unix_seconds : began_unix_seconds_;
        write_run(id, 0);
      }
      log({&point, 1});
    });
  }
  if (!has_earlier) {
    write_run(id, steps_done);
  }
}

void Wandb::write_run(const std::string& id, std::int64_t steps_done) {
  const auto of = [&](const char* variable) { return run_.environment(variable).value_or(""); };
  const config::LogSection& log = run_.config.log;
  write(run_record({.id = id,
                    .entity = of("WANDB_ENTITY"),
                    .project = run_.choose(log.project, "WANDB_PROJECT", "sherd"),
                    .display_name = run_.choose(log.name, "WANDB_NAME", run_.name),
                    .group = of("WANDB_RUN_GROUP"),
                    .job_type = of("WANDB_JOB_TYPE"),
                    .notes = of("WANDB_NOTES"),
                    .tags = tags_of(run_),
                    .host = host_name(),
                    .steps_done = steps_done,
                    .began_unix_seconds = began_unix_seconds_},
                   run_.config));
}

void Wandb::log(std::span<const Point> points) {
  for (const Point& point : points) {
    if (point.step != row_.step) {
      write_row();
      row_ = {point.step, point.unix_seconds, {}};
    }
    row_.unix_seconds = point.unix_seconds;
    for (const auto& [name, number] : point.metrics) {
      row_.metrics.emplace_back(name, number);
      summary_[name] = number;
    }
  }
}

void Wandb::end(End how) {
  write_row();
  const double runtime = unix_seconds_now() - began_unix_seconds_;
  summary_["_step"] = static_cast<double>(row_.step);
  summary_["_runtime"] = runtime;
  write(summary_record(summary_));
  write(exit_record(how, runtime));
  file_->sync();
  closing_words_ =
      sync_ && how == End::Finished
          ? run_sync(folder_, kSyncLimit,
                     [&] { return is_abandoned() || sherd::launch::StopRequest::requested(); })
          : "tracker wandb: to upload the run: " + sync_command(folder_);
}

std::string Wandb::closing_words() const {
  return closing_words_;
}

std::chrono::milliseconds Wandb::patience(End how) const {
  const bool syncs = sync_ && how == End::Finished;
  return Tracker::patience(how) + (syncs ? kSyncLimit : std::chrono::minutes(0));
}

void Wandb::write(std::string_view record_without_number) {
  file_->write(numbered(++records_, record_without_number));
}

void Wandb::write_row() {
  if (!row_.metrics.empty()) {
    write(history_record(row_, row_.unix_seconds - began_unix_seconds_));
  }
}

}  // namespace llm::track
