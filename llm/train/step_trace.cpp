#include "llm/train/step_trace.h"

#include <exception>
#include <map>
#include <utility>

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "files/folder.h"
#include "files/output.h"

namespace llm::train {

namespace {

namespace profiler = torch::autograd::profiler;

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

StepTrace::StepTrace(const config::StepSpan& steps, std::filesystem::path folder, int rank,
                     c10::Device device, const plan::DeviceLimits& limits)
    : steps_(steps), folder_(std::move(folder)), rank_(rank), device_(device), limits_(limits) {}

// While an exception passes, a GPU may wait for a peer that is gone.
StepTrace::~StepTrace() {
  if (!device_.is_cuda() || std::uncaught_exceptions() == 0) {
    static_cast<void>(leave());
  }
}

void StepTrace::begin(std::int64_t step) {
  // A GPU's profiler slows down what comes next when it is prepared.
  const bool prepares = device_.is_cuda() && step + 1 == steps_.first;
  if (!prepares && !steps_.has(step)) {
    return;
  }
  if (!recording_) {
    recording_ = std::make_unique<plan::ProfilerRecording>(device_, /*with_memory=*/true);
  }
  if (steps_.has(step)) {
    recording_->start();
    step_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    step_->before(fmt::format("step {}", step));
    ++recorded_;
  }
}

std::string StepTrace::end(std::int64_t step) {
  step_.reset();
  return step < steps_.last ? "" : leave();
}

std::string StepTrace::leave() {
  step_.reset();
  const auto recording = std::exchange(recording_, nullptr);
  if (!recording || recorded_ == 0) {
    return "";
  }
  const std::string name =
      (folder_ / fmt::format("steps-{}.rank-{}", config::to_text(steps_), rank_)).string();
  try {
    const auto result = recording->finish();
    sherd::files::make_folder(folder_.string());
    result->save(name + ".json");
    sherd::files::write_file(name + ".memory.json", memory_timeline(*result, rank_) + "\n");
    std::string lines =
        fmt::format("trace of steps {}: {}.json and .memory.json, for chrome://tracing",
                    config::to_text(steps_), name);
    if (device_.is_cuda()) {
      const plan::DeviceTable table =
          plan::device_table(plan::recorded_steps(*result), recorded_, limits_);
      lines += fmt::format("\n{}", fmt::join(lines_of(table), "\n"));
    }
    return lines;
  } catch (const std::exception& fault) {
    return fmt::format("no trace of steps {}: {}", config::to_text(steps_), fault.what());
  }
}

}  // namespace llm::train
