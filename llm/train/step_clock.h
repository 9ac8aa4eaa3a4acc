#pragma once
// How long a step takes where it is computed.

#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "llm/train/step_profile.h"

namespace llm::train {

/// Runs from its construction to finish(): on a CPU by its clock, on another device by events of
/// the current stream, so that it begins when the device has done what was launched before. The
/// host waits in wait() alone.
/// PyTorch: `torch.Event(enable_timing=True)`.
class StepClock {
 public:
  explicit StepClock(c10::Device device);

  /// What was launched since the last mark belongs to `phase`. Nothing on a CPU, whose phases
  /// StepProfile sees.
  void mark(Phase phase);
  void finish();
  /// Returns when the device has come to the end; what follows may be asked then.
  void wait() const;
  [[nodiscard]] double seconds() const;
  /// Empty on a CPU.
  [[nodiscard]] std::map<Phase, double> phase_seconds() const;

 private:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] c10::Event now() const;

  c10::Device device_;
  Clock::time_point begun_ = Clock::now();
  double seconds_on_cpu_ = 0;
  std::vector<std::pair<Phase, c10::Event>> marks_;  // the first is the beginning
};

}  // namespace llm::train
