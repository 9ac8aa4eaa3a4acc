#pragma once
// The input that a weight's gradient needs, kept until backward or computed again then.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

namespace sherd::ops {

/// Returns what forward is to save of `input` for a gradient that needs it if `is_needed`: nothing
/// where `after_norm`, and the norm that returned it can compute it again, which is noted.
at::Tensor keep_input(torch::autograd::AutogradContext& context, const at::Tensor& input,
                      bool is_needed, bool after_norm);

/// The input in backward. `saved`: what keep_input() returned.
[[nodiscard]] at::Tensor kept_input(torch::autograd::AutogradContext& context,
                                    const at::Tensor& saved);

}  // namespace sherd::ops
