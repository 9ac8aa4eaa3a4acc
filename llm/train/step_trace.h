#pragma once
// Steps as a profiler sees them.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "llm/config/measures.h"
#include "llm/plan/profiler_recording.h"

namespace at {
struct RecordFunction;
}

namespace llm::train {

/// Records some steps of this rank by LibTorch's profiler, and writes two files that
/// chrome://tracing and Perfetto read: what was computed when, on a GPU also there, and how much
/// memory LibTorch's allocator had given out. Traced steps are slower; their numbers are the same.
class StepTrace {
 public:
  /// The last of `steps` writes the files into `folder`. `device`: of the rank; `limits`: its own,
  /// for the table of a GPU's time.
  StepTrace(const config::StepSpan& steps, std::filesystem::path folder, int rank,
            c10::Device device, const plan::DeviceLimits& limits);
  /// Writes what was recorded so far; of a GPU not while an exception passes.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// Call it before each step.
  void begin(std::int64_t step);
  /// Call it after each step. Returns lines for people where a trace was written, or could not be,
  /// with the DeviceTable of a GPU. A trace never ends a run.
  [[nodiscard]] std::string end(std::int64_t step);

 private:
  [[nodiscard]] std::string leave();

  config::StepSpan steps_;
  std::filesystem::path folder_;
  int rank_;
  c10::Device device_;
  plan::DeviceLimits limits_;
  std::unique_ptr<plan::ProfilerRecording> recording_;  // from the step before the first on
  std::unique_ptr<at::RecordFunction> step_;            // the one that is made now
  int recorded_ = 0;                                    // steps
};

}  // namespace llm::train
