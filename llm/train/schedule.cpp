#include "llm/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llm::train {

double learning_rate(const config::OptimSection& optim, std::int64_t step,
                     std::int64_t total_steps) {
  if (step <= optim.warmup_steps) {
    return optim.lr * static_cast<double>(step) / static_cast<double>(optim.warmup_steps);
  }
  const double done = static_cast<double>(step - 1 - optim.warmup_steps);
  const double length =
      static_cast<double>(std::max<std::int64_t>(1, total_steps - optim.warmup_steps));
  const double progress = std::min(1.0, done / length);
  double remaining = 1.0;
  if (optim.schedule == config::Schedule::Linear) {
    remaining = 1.0 - progress;
  } else if (optim.schedule == config::Schedule::Cosine) {
    remaining = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return optim.lr * (optim.min_lr_ratio + (1.0 - optim.min_lr_ratio) * remaining);
}

}  // namespace llm::train
