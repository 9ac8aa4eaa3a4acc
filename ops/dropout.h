#pragma once

#include <ATen/core/Tensor.h>

#include "ops/dropout_mask.h"

namespace sherd::ops {

/// Returns `input` with the dropped elements zero and the others ÷ (1 − probability); `input`
/// itself if nothing is dropped. Differentiable; backward makes the mask again. Shapes: [..., I]
/// with as many rows as there are keys. PyTorch: `torch.nn.functional.dropout`.
[[nodiscard]] at::Tensor dropout(const at::Tensor& input, const Dropout& dropout);

}  // namespace sherd::ops
