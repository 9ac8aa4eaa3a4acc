#pragma once

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// silu(gate) × up, elementwise.
/// Shapes: gate and up alike. Keeps both for backward and computes silu(gate) again there.
/// Paper: GLU variants, arXiv:2002.05202.
[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace sherd::ops
