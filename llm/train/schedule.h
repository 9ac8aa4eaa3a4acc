#pragma once
// The learning rate of each step.

#include <cstdint>

#include "llm/config/run_config.h"

namespace llm::train {

/// Learning rate of step `step` (from 1) of `total_steps`: rises linearly over the warm-up, then
/// falls to lr × min_lr_ratio at the end (linear, or half a cosine), or stays. A pure function, so
/// that a resumed run has the rates of the uninterrupted one. PyTorch:
/// `transformers.get_linear_schedule_with_warmup`, `get_cosine_schedule_with_warmup`; the first
/// step has lr × 1 / warmup_steps instead of 0, and the last is above the end.
[[nodiscard]] double learning_rate(double lr, const config::ScheduleSection& schedule,
                                   std::int64_t step, std::int64_t total_steps);

}  // namespace llm::train
