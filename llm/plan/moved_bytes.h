#pragma once
// How many bytes go through a device's memory: what takes time beside products.

#include <string_view>

#include <ATen/core/ivalue.h>

#include "llm/plan/planned_run.h"

namespace llm::plan {

/// True if the weight of ops::swiglu_linear() or geglu_linear() takes no gradient, by the arguments
/// of their backward.
[[nodiscard]] bool has_frozen_weight(c10::ArrayRef<const c10::IValue> arguments);
/// The same of the second argument of a loss, the head's weight.
[[nodiscard]] bool has_frozen_head(c10::ArrayRef<const c10::IValue> arguments);

/// Bytes that a call of an operator reads and writes where one kernel does all that belongs
/// together, as on GPUs: of a product those of the passes after it, of others each array once. By
/// its name without "sherd::" or "aten::" and the arguments that profilers see. A view moves
/// nothing.
[[nodiscard]] double moved_bytes(std::string_view name, c10::ArrayRef<const c10::IValue> arguments);

/// Whether a call of swiglu_linear_backward or geglu_linear_backward makes the gated product in the
/// pass that makes the gradients (ops::Backend::swiglu_backward_with_product).
[[nodiscard]] bool is_gate_backward_in_one(c10::ArrayRef<const c10::IValue> arguments);

/// What AdamW reads and writes of a parameter in one pass: master, moments, gradient, and the
/// rounded copy that travels.
[[nodiscard]] double update_bytes_a_parameter(const PlannedRun& run);

/// What AdamW brings from the host of a device of a parameter, and takes back there.
[[nodiscard]] double resting_bytes_a_parameter(const PlannedRun& run);
/// What of a parameter is read from disks and written there in a step: state and sums of gradients
/// once each way a micro-batch or update, parameters for forward, backward and update.
[[nodiscard]] double disk_bytes_a_parameter(const PlannedRun& run);
/// The same of a frozen one, which is only read.
[[nodiscard]] double disk_bytes_a_frozen_parameter(const PlannedRun& run);
/// Whether anything rests on a disk, for which the host waits in an update.
[[nodiscard]] bool offloads_to_disk(const PlannedRun& run);
/// Of parameters as they travel that rest there, or on a disk behind it, which come back for
/// forward, backward and update; and of their sums of gradients, which each micro-batch sends
/// there.
[[nodiscard]] double parameter_bytes_on_host(const PlannedRun& run);
[[nodiscard]] double gradient_bytes_on_host(const PlannedRun& run);

/// What a GPU adds to attention for ALiBi: columns of 16 bits behind each head, for products of
/// queries and keys to hold the bias (docs/design/gpu-kernels.md).
struct AlibiColumns {
  double share = 1;  ///< of attention's operations: heads are so much wider
  double moved_bytes = 0;
};
/// Of a call over `tokens`, of a model that has them; else none.
[[nodiscard]] AlibiColumns alibi_columns(const PlannedRun& run, double tokens, bool is_backward);

/// What a rank reads and writes in a step to sum what `parts` ranks have of each of its `elements`.
[[nodiscard]] double sum_bytes(const PlannedRun& run, int parts, double elements);

}  // namespace llm::plan
