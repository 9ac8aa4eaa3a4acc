#pragma once

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// The rows of a table that `ids` name.
/// Shapes: ids int64 [...], weight [V, D] -> [..., D].
/// The gradient of a row that occurs several times is summed in fp32 and rounded once. It is
/// scattered into the weight's GradSlot: no dense gradient is held beside it.
/// Throws c10::Error for an id outside the table.  PyTorch: `torch.nn.functional.embedding`.
[[nodiscard]] at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight);

}  // namespace sherd::ops
