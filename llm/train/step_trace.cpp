#include "llm/train/step_trace.h"

#include <exception>
#include <map>
#include <utility>

#include <ATen/record_function.h>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "files/folder.h"
#include "files/output.h"

namespace llm::train {

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

torch::profiler::impl::ProfilerConfig profiler_config() {
  return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO,
                                               /*report_input_shapes=*/false,
                                               /*profile_memory=*/true);
}

// A counter that grows and falls with what is allocated and freed, from 0 at the beginning.
std::string memory_timeline(const profiler::ProfilerResult& result, int rank) {
  constexpr double kNanosecondsOfOne = 1e3;
  std::multimap<std::uint64_t, std::int64_t> changes;  // by time
  for (const profiler::KinetoEvent& event : result.events()) {
    if (event.name() == "[memory]") {
      changes.emplace(event.startNs(), event.nBytes());
    }
  }
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  std::int64_t bytes = 0;
  for (const auto& [nanoseconds, change] : changes) {
    bytes += change;
    events.push_back({{"name", "allocated since the beginning"},
                      {"ph", "C"},
                      {"pid", rank},
                      {"ts", static_cast<double>(nanoseconds) / kNanosecondsOfOne},
                      {"args", {{"bytes", bytes}}}});
  }
  return nlohmann::ordered_json{{"traceEvents", std::move(events)}}.dump();
}

}  // namespace

struct StepTrace::Recording {
  Recording() {
    const auto config = profiler_config();
    profiler::prepareProfiler(config, {ActivityType::CPU});
    profiler::enableProfiler(config, {ActivityType::CPU});
  }
  std::unique_ptr<profiler::ProfilerResult> finish() {
    step.reset();
    return profiler::disableProfiler();
  }

  std::unique_ptr<at::RecordFunction> step;  // the one that is made now
};

StepTrace::StepTrace(const config::StepSpan& steps, std::filesystem::path folder, int rank)
    : steps_(steps), folder_(std::move(folder)), rank_(rank) {}

StepTrace::~StepTrace() {
  static_cast<void>(leave());
}

void StepTrace::begin(std::int64_t step) {
  if (!steps_.has(step)) {
    return;
  }
  if (!recording_) {
    recording_ = std::make_unique<Recording>();
  }
  recording_->step = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  recording_->step->before(fmt::format("step {}", step));
}

std::string StepTrace::end(std::int64_t step) {
  if (!recording_) {
    return "";
  }
  recording_->step.reset();
  return step < steps_.last ? "" : leave();
}

std::string StepTrace::leave() {
  const auto recording = std::exchange(recording_, nullptr);
  if (!recording) {
    return "";
  }
  const std::string name =
      (folder_ / fmt::format("steps-{}.rank-{}", config::to_text(steps_), rank_)).string();
  try {
    const auto result = recording->finish();
    sherd::files::make_folder(folder_.string());
    result->save(name + ".json");
    sherd::files::write_file(name + ".memory.json", memory_timeline(*result, rank_) + "\n");
    return fmt::format("trace of steps {}: {}.json and .memory.json, for chrome://tracing",
                       config::to_text(steps_), name);
  } catch (const std::exception& fault) {
    return fmt::format("no trace of steps {}: {}", config::to_text(steps_), fault.what());
  }
}

}  // namespace llm::train
