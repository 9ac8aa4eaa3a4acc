#pragma once
// What an operator returned, computed again in backward from what the operator keeps.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace sherd::ops {

/// Returns the output of the operator that `node` stands for in autograd's graph: the bits that
/// forward returned, kept until the operator's own backward, so that all who ask share it. Called
/// in backward, before that of the operator; throws c10::Error where its graph has been freed.
using Recompute = at::Tensor (*)(torch::autograd::Node& node);

/// For a tensor whose operator can do so (the norms), unchanged since; null for any other.
[[nodiscard]] Recompute recompute_of(const at::Tensor& tensor);

}  // namespace sherd::ops
