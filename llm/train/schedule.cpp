#include "llm/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llm::train {

double learning_rate(double lr, const config::ScheduleSection& schedule, std::int64_t step,
                     std::int64_t total_steps) {
  const std::int64_t warmup = config::warmup_steps(schedule.warmup, total_steps);
  if (step <= warmup) {
    return lr * static_cast<double>(step) / static_cast<double>(warmup);
  }
  const double done = static_cast<double>(step - 1 - warmup);
  const double length = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup));
  const double progress = std::min(1.0, done / length);
  double remaining = 1.0;
  if (schedule.kind == config::Schedule::Linear) {
    remaining = 1.0 - progress;
  } else if (schedule.kind == config::Schedule::Cosine) {
    remaining = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return lr * (schedule.min_lr_ratio + (1.0 - schedule.min_lr_ratio) * remaining);
}

}  // namespace llm::train
