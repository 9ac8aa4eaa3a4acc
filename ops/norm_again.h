#pragma once
// What a norm returned, computed again in backward from what the norm keeps.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

namespace sherd::ops {

/// Answers the normalised output of the norm that `node` stands for in autograd's graph: the bits
/// that forward returned, kept until the norm's own backward, so that all who ask share it. Called
/// in backward, before that of the norm; throws c10::Error where its graph has been freed.
using NormAgain = at::Tensor (*)(torch::autograd::Node& node);

/// As NormAgain, for a node of the autograd function Norm: Norm::again(context) computes the output
/// from what is saved there. Norm's backward erases "output" from `saved_data`.
template <class Norm>
at::Tensor output_again(torch::autograd::Node& node) {
  torch::autograd::AutogradContext& context =
      static_cast<torch::autograd::CppNode<Norm>&>(node).ctx_;
  at::IValue& output = context.saved_data["output"];
  if (output.isNone()) {
    output = Norm::again(context);
  }
  return output.toTensor();
}

/// output_again of Norm where `tensor` is what it returned, unchanged since; else null. Norm's
/// forward keeps the output's version as `saved_data["version"]`.
template <class Norm>
NormAgain again_of(const at::Tensor& tensor) {
  auto* node = dynamic_cast<torch::autograd::CppNode<Norm>*>(tensor.grad_fn().get());
  const bool is_output = node != nullptr && tensor.output_nr() == 0 &&
                         node->ctx_.saved_data.at("version").toInt() == tensor._version();
  return is_output ? &output_again<Norm> : nullptr;
}

/// For the output of rms_norm() or add_rms_norm(); null of any other tensor.
[[nodiscard]] NormAgain rms_norm_again(const at::Tensor& tensor);
/// For the output of layer_norm() or add_layer_norm(); null of any other tensor.
[[nodiscard]] NormAgain layer_norm_again(const at::Tensor& tensor);

}  // namespace sherd::ops
