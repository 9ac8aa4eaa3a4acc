#include "llm/track/trackers.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "llm/track/mlflow.h"
#include "llm/track/tensorboard.h"
#include "llm/track/tracked_run.h"
#include "llm/track/wandb.h"

namespace llm::track {

namespace {

// Null for a sink that is no tracker, or one that the environment turns off.
std::unique_ptr<Tracker> tracker_of(const config::Sink& sink, const TrackedRun& run) {
  switch (sink.kind) {
    case config::SinkKind::TensorBoard:
      return std::make_unique<TensorBoard>(sink, run);
    case config::SinkKind::Wandb:
      return wandb_is_disabled(run) ? nullptr : std::make_unique<Wandb>(sink, run);
    case config::SinkKind::Mlflow:
      return std::make_unique<Mlflow>(run);
    case config::SinkKind::Jsonl:
      break;
  }
  return nullptr;
}

// As MLflow takes it, which is the strictest.
std::string plain_name(std::string name) {
  constexpr std::string_view kTaken =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  std::replace_if(
      name.begin(), name.end(), [&](char c) { return kTaken.find(c) == std::string_view::npos; },
      '_');
  return name;
}

}  // namespace

Point point_of(const StepRecord& record) {
  Point point{record.step, record.unix_seconds, {}};
  if (record.supervised_tokens > 0) {
    point.metrics = {{"train/loss", record.loss}, {"train/grad_norm", record.grad_norm}};
  }
  point.metrics.insert(point.metrics.end(),
                       {{"train/learning_rate", record.lr},
                        {"train/epoch", record.epochs},
                        {"perf/tokens_per_second", record.tokens_per_second()},
                        {"perf/samples_per_second", record.samples_per_second()},
                        {"perf/step_seconds", record.step_seconds},
                        {"perf/data_wait_seconds", record.data_wait_seconds},
                        {"perf/peak_memory_bytes", static_cast<double>(record.peak_rank_bytes)}});
  if (record.mfu) {
    point.metrics.emplace_back("perf/mfu", *record.mfu);
  }
  for (const auto& [name, value] : record.figures) {
    point.metrics.emplace_back("train/" + name, value);
  }
  return point;
}

Point point_of(const EvaluationRecord& record) {
  const std::string prefix = record.data.empty() ? "eval/" : "eval/" + record.data + "/";
  Point point{record.step, record.unix_seconds, {{prefix + "loss", record.loss}}};
  if (record.generated) {
    point.metrics.emplace_back(prefix + "em", record.em);
    point.metrics.emplace_back(prefix + "f1", record.f1);
  }
  for (const auto& [name, value] : record.figures) {
    point.metrics.emplace_back(prefix + name, value);
  }
  point.metrics.emplace_back(prefix + "seconds", record.seconds);
  return point;
}

std::vector<std::string> evaluation_names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  std::set<std::string> given;
  for (const std::string& path : paths) {
    const std::string stem =
        paths.size() == 1 ? "" : plain_name(std::filesystem::path(path).stem().string());
    std::string name = stem;
    for (int number = 1; !given.insert(name).second; ++number) {
      name = stem + "-" + std::to_string(number);
    }
    names.push_back(name);
  }
  return names;
}

Trackers::Trackers(const config::RunConfig& config, const sherd::launch::EnvLookup& environment) {
  const TrackedRun run = tracked_run(config, environment);
  for (const config::Sink& sink : config.log.sink) {
    if (std::unique_ptr<Tracker> tracker = tracker_of(sink, run)) {
      news_.push_back("tracker " + tracker->name() + ": " + tracker->place());
      threads_.push_back(std::make_unique<TrackerThread>(std::move(tracker)));
    } else if (sink.kind == config::SinkKind::Wandb) {
      news_.emplace_back("tracker wandb: turned off by WANDB_MODE=disabled");
    }
  }
}

Trackers::~Trackers() {
  end(End::Failed);
}

void Trackers::begin(std::int64_t steps_done, const EarlierPoints& earlier) {
  for (const auto& thread : threads_) {
    thread->begin(steps_done, earlier);
  }
}

void Trackers::log(const Point& point) {
  for (const auto& thread : threads_) {
    thread->push(point);
  }
}

void Trackers::end(End how) {
  for (const auto& thread : threads_) {
    thread->ask_to_end(how);
  }
  const auto asked = std::chrono::steady_clock::now();
  for (const auto& thread : threads_) {
    thread->wait_for_end(asked);
  }
}

std::vector<std::string> Trackers::take_news() {
  std::vector<std::string> lines = std::exchange(news_, {});
  for (const auto& thread : threads_) {
    for (std::string& line : thread->take_news()) {
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace llm::track
