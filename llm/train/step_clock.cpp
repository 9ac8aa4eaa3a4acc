#include "llm/train/step_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace llm::train {

namespace {

constexpr double kMillisecond_seconds = 1e-3;

}  // namespace

StepClock::StepClock(c10::Device device) : device_(device) {
  mark(Phase::Other);
}

c10::Event StepClock::now() const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // one that keeps time
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

void StepClock::mark(Phase phase) {
  if (!device_.is_cpu()) {
    marks_.emplace_back(phase, now());
  }
}

void StepClock::finish() {
  seconds_on_cpu_ = std::chrono::duration<double>(Clock::now() - begun_).count();
  mark(Phase::Other);
}

void StepClock::wait() const {
  if (!device_.is_cpu()) {
    marks_.back().second.synchronize();
  }
}

double StepClock::seconds() const {
  if (device_.is_cpu()) {
    return seconds_on_cpu_;
  }
  return marks_.front().second.elapsedTime(marks_.back().second) * kMillisecond_seconds;
}

std::map<Phase, double> StepClock::phase_seconds() const {
  std::map<Phase, double> seconds;
  for (size_t i = 1; i < marks_.size(); ++i) {
    seconds[marks_[i].first] +=
        marks_[i - 1].second.elapsedTime(marks_[i].second) * kMillisecond_seconds;
  }
  return seconds;
}

}  // namespace llm::train
