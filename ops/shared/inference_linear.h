#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// linear() where no gradient is wanted: outside autograd, and with the back end's own product
/// where it has one for so few rows. Shapes as linear().
[[nodiscard]] at::Tensor inference_linear(const at::Tensor& input, const at::Tensor& weight,
                                          const std::optional<at::Tensor>& bias = std::nullopt);

}  // namespace sherd::ops
