#include "llm/train/loss_watch.h"

#include <cmath>

#include <fmt/core.h>

namespace llm::train {

namespace {

constexpr int kStillSteps = 10;
constexpr double kStillShare = 1e-7;  // of the loss: below what fp32 can resolve

}  // namespace

std::string LossWatch::look(std::int64_t step, double loss, double grad_norm) {
  const bool still = std::abs(loss - last_loss_) <= kStillShare * std::abs(last_loss_);
  steps_still_ = still ? steps_still_ + 1 : 0;
  last_loss_ = loss;
  if (grad_norm == 0 && !told_zero_) {
    told_zero_ = true;
    return fmt::format(
        "warning: step {}: the gradient norm is 0: the model no longer learns. The run has "
        "probably diverged; lower optim.lr, or raise schedule.warmup.",
        step);
  }
  if (steps_still_ >= kStillSteps && !told_still_) {
    told_still_ = true;
    return fmt::format(
        "warning: step {}: the loss has not changed for {} steps. Check optim.lr: if it is too "
        "high, the run diverges; if it is too low, it learns nothing.",
        step, kStillSteps);
  }
  return "";
}

}  // namespace llm::train
