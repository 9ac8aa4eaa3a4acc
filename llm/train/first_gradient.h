#pragma once
// What the backward of a loss begins with on a device.

#include <limits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>

namespace llm::train {

/// [Note: A loss that is not finite on a device]
/// All of its gradients may be finite (a label whose logit is −∞), and the host sees it a step
/// late. So backward begins with NaN there, else with 1: the norm is NaN then, or the scaler finds
/// an overflow, on every rank, without an exchange of losses. What is launched behind that step
/// begins so as well (`left_out`, bool [], or undefined): with a scaler only the rank of that loss
/// knows, and has to have a label there, too.
inline at::Tensor first_gradient(const at::Tensor& loss, const at::Tensor& left_out) {
  at::Tensor gradient = at::mul(loss.detach(), 0).add_(1);
  if (left_out.defined()) {
    gradient.masked_fill_(left_out, std::numeric_limits<float>::quiet_NaN());
  }
  return gradient;
}

}  // namespace llm::train
