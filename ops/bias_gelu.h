#pragma once

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// gelu(input + bias) in its tanh form: x ÷ 2 × (1 + tanh(sqrt(2 ÷ π) × (x + 0.044715 x³))). The
/// sum and the function in fp32, rounded once.
/// Shapes: input [..., F], bias [F] of the same dtype -> [..., F]. Keeps the input and computes the
/// sum again in backward; the bias's gradient is summed in fp32.
/// PyTorch: `torch.nn.functional.gelu(input + bias, approximate="tanh")`.  Paper: arXiv:1606.08415.
[[nodiscard]] at::Tensor bias_gelu(const at::Tensor& input, const at::Tensor& bias);

}  // namespace sherd::ops
