#pragma once
// What a norm returned, computed again in backward from what the norm keeps.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace sherd::ops {

/// Answers the normalised output of the norm that `node` stands for in autograd's graph: the bits
/// that forward returned, kept until the norm's own backward, so that all who ask share it. Called
/// in backward, before that of the norm; throws c10::Error where its graph has been freed.
using NormAgain = at::Tensor (*)(torch::autograd::Node& node);

/// For the node of rms_norm() or add_rms_norm(); null of any other.
[[nodiscard]] NormAgain rms_norm_again(torch::autograd::Node& node);
/// For the node of layer_norm() or add_layer_norm(); null of any other.
[[nodiscard]] NormAgain layer_norm_again(torch::autograd::Node& node);

}  // namespace sherd::ops
