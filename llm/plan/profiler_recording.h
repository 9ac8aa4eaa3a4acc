#pragma once
// Steps as LibTorch's profiler records them.

#include <exception>
#include <functional>
#include <memory>

#include <c10/core/Device.h>

#include "llm/plan/device_table.h"

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace llm::plan {

/// Records the operators of this thread and of the backward passes that it starts, and on a GPU
/// the kernels and copies of this process, by CUPTI. At most one per process records at a time.
/// Only finish() throws: also what failed before it.
/// PyTorch: `torch.profiler.profile(record_shapes=True)`.
class ProfilerRecording {
 public:
  /// Prepares the profiler. `with_memory`: it also records what LibTorch's allocators give out and
  /// take back. On a GPU CUPTI starts here, and what is launched next may be slow: make a step
  /// before start().
  explicit ProfilerRecording(c10::Device device, bool with_memory = false);
  /// Drops the recording, unless finish() was called. While an exception passes, that of a GPU goes
  /// on until the process ends.
  ~ProfilerRecording();
  ProfilerRecording(const ProfilerRecording&) = delete;
  ProfilerRecording& operator=(const ProfilerRecording&) = delete;

  /// Blocks until a GPU has done what was launched before, and records from then on.
  void start();
  /// Blocks until a GPU has done what was launched, and returns what was recorded. Once, after
  /// start(). Throws what the profiler throws.
  [[nodiscard]] std::unique_ptr<torch::autograd::profiler::ProfilerResult> finish();

 private:
  enum class State { Unprepared, Prepared, Started, Ended };
  void guarded(const std::function<void()>& work);
  void enable();

  c10::Device device_;
  bool with_memory_;
  State state_ = State::Unprepared;
  std::exception_ptr fault_;  // null: none so far
};

/// What device_table() reads, of a finished recording.
[[nodiscard]] RecordedSteps recorded_steps(const torch::autograd::profiler::ProfilerResult& result);

/// Makes `steps` steps under the profiler, after one to warm it up, and returns where their time
/// went on the device. `make_steps(n)` makes n steps and blocks until the device has done them.
/// Never throws for a fault of the profiler: the table then has a `problem`. Collective if
/// `make_steps` is.
[[nodiscard]] DeviceTable profile_steps(c10::Device device, int steps, const DeviceLimits& limits,
                                        const KnownBytes& known_bytes,
                                        const std::function<void(int)>& make_steps);

}  // namespace llm::plan
