#pragma once
// How many bytes go through a device's memory: what takes time beside products.

#include <string_view>

#include <ATen/core/ivalue.h>

#include "llm/plan/planned_run.h"

namespace llm::plan {

/// What a call of an operator reads and writes where one kernel does all that belongs together, as
/// on GPUs: of a product what is done beside it in passes of their own, of others each array once.
/// By its name without "sherd::" or "aten::" and the arguments that profilers see. What only names
/// memory anew moves nothing.
[[nodiscard]] double moved_bytes(std::string_view name, c10::ArrayRef<const c10::IValue> arguments);

/// What AdamW reads and writes of a parameter in one pass: master, moments, gradient, and the
/// rounded copy that travels.
[[nodiscard]] double update_bytes_a_parameter(const PlannedRun& run);

/// What a rank reads and writes in a step to sum what `parts` ranks have of each of its `elements`.
[[nodiscard]] double sum_bytes(const PlannedRun& run, int parts, double elements);

}  // namespace llm::plan
