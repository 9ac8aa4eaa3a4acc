#pragma once
// `.grad` of a sharded parameter: an error that says where the gradient is.

#include <string>

#include <ATen/core/Tensor.h>

namespace sherd::detail {

/// From now on `.grad` of the parameter throws Error(Usage) outside of backward, where its gradient
/// is the shard's: code that looks for one (torch::optim, clip_grad_norm_, Module::zero_grad) would
/// find none, and do nothing in silence.
void install_sharded_meta(const at::Tensor& parameter, const std::string& name);

}  // namespace sherd::detail
