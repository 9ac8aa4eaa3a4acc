#pragma once
// Steps as a profiler sees them.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "llm/config/measures.h"

namespace llm::train {

/// Records some steps of this rank by LibTorch's profiler, and leaves two files that
/// chrome://tracing and Perfetto read: what was computed when, and how much memory LibTorch's
/// allocator had given out. Traced steps are slower; their numbers are the same.
class StepTrace {
 public:
  /// Files are put into `folder` as the last of `steps` ends.
  StepTrace(const config::StepSpan& steps, std::filesystem::path folder, int rank);
  /// What is recorded is left as it is so far.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// Before each step.
  void begin(std::int64_t step);
  /// After each. A line for people where a trace was written, or could not be: a trace never ends a
  /// run.
  [[nodiscard]] std::string end(std::int64_t step);

 private:
  struct Recording;
  [[nodiscard]] std::string leave();

  config::StepSpan steps_;
  std::filesystem::path folder_;
  int rank_;
  std::unique_ptr<Recording> recording_;  // while steps are recorded
};

}  // namespace llm::train
