// RMSNorm and LayerNorm, alone or with the sum that they are of: one autograd function.

#include <optional>

#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/layer_norm.h"
#include "ops/recompute.h"
#include "ops/rms_norm.h"
#include "ops/shared/gradient.h"
#include "ops/shared/recorded.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOutput = "output";    // computed again, for all that follow the norm
constexpr const char* kVersion = "version";  // of the output as forward returned it

// As profiles show them.
struct Names {
  const char* forward;
  const char* backward;
  const char* again;
};
const Names& names_of(const NormParameters& parameters) {
  static constexpr Names kLayerNorm = {"sherd::layer_norm", "sherd::layer_norm_backward",
                                       "sherd::layer_norm_again"};
  static constexpr Names kRmsNorm = {"sherd::rms_norm", "sherd::rms_norm_backward",
                                     "sherd::rms_norm_again"};
  return parameters.is_layer_norm() ? kLayerNorm : kRmsNorm;
}

struct Norm : torch::autograd::Function<Norm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const std::optional<at::Tensor>& residual, double epsilon,
                               RmsGain gain) {
    const NormParameters parameters{weight, bias.value_or(at::Tensor()), epsilon, gain};
    RECORD_FUNCTION(names_of(parameters).forward, Recorded({input}));
    const NormInputs inputs{input.contiguous(), residual ? residual->contiguous() : at::Tensor()};
    const NormOutput output = choose_backend(*context, input).norm(inputs, parameters);
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["gain"] = static_cast<int64_t>(gain);
    context->saved_data[kVersion] = static_cast<int64_t>(output.normalised._version());
    context->set_materialize_grads(false);
    context->save_for_backward({output.sum, weight, parameters.bias, output.statistics});
    return residual ? variable_list{output.normalised, output.sum}
                    : variable_list{output.normalised};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    context->saved_data.erase(kOutput);
    const auto saved = context->get_saved_variables();
    const at::Tensor &sum = saved[0], &statistics = saved[3];
    const NormParameters parameters = parameters_of(*context, saved);
    RECORD_FUNCTION(names_of(parameters).backward, Recorded({sum}));
    once_differentiable(names_of(parameters).forward);
    const NormInputGradients grads = chosen_backend(*context).norm_backward(
        incoming(gradients, sum), sum, parameters, statistics,
        {context->needs_input_grad(1), parameters.is_layer_norm() && context->needs_input_grad(2)});
    const at::Tensor grad_weight = deliver_sum(parameters.weight, grads.weight);
    const at::Tensor grad_bias = deliver_sum(parameters.bias, grads.bias);
    const at::Tensor grad_residual = gradients.size() == 2 ? grads.sum : at::Tensor();
    return {grads.sum, grad_weight, grad_bias, grad_residual, {}, {}};
  }

  static at::Tensor again(AutogradContext& context) {
    const auto saved = context.get_saved_variables();
    const NormParameters parameters = parameters_of(context, saved);
    RECORD_FUNCTION(names_of(parameters).again, Recorded({saved[0]}));
    return chosen_backend(context).norm({saved[0], {}}, parameters).normalised;
  }

 private:
  static NormParameters parameters_of(AutogradContext& context, const variable_list& saved) {
    return {saved[1], saved[2], context.saved_data.at("epsilon").toDouble(),
            static_cast<RmsGain>(context.saved_data.at("gain").toInt())};
  }
  static NormGradients incoming(const variable_list& gradients, const at::Tensor& like) {
    const bool of_sum = gradients.size() == 2 && gradients[1].defined();
    return {gradients[0].defined() ? gradients[0].contiguous() : at::zeros_like(like),
            of_sum ? gradients[1].contiguous() : at::Tensor()};
  }
};

using NormNode = torch::autograd::CppNode<Norm>;

at::Tensor output_again(torch::autograd::Node& node) {
  AutogradContext& context = static_cast<NormNode&>(node).ctx_;
  at::IValue& output = context.saved_data[kOutput];
  if (output.isNone()) {
    output = Norm::again(context);
  }
  return output.toTensor();
}

}  // namespace

Recompute recompute_of(const at::Tensor& tensor) {
  auto* node = dynamic_cast<NormNode*>(tensor.grad_fn().get());
  const bool is_output = node != nullptr && tensor.output_nr() == 0 &&
                         node->ctx_.saved_data.at(kVersion).toInt() == tensor._version();
  return is_output ? &output_again : nullptr;
}

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon,
                    RmsGain gain) {
  return Norm::apply(input, weight, std::nullopt, std::nullopt, epsilon, gain).front();
}

NormalisedSum add_rms_norm(const at::Tensor& input, const at::Tensor& residual,
                           const at::Tensor& weight, double epsilon, RmsGain gain) {
  const variable_list both = Norm::apply(input, weight, std::nullopt, residual, epsilon, gain);
  return {both[1], both[0]};
}

at::Tensor layer_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      double epsilon) {
  return Norm::apply(input, weight, bias, std::nullopt, epsilon, RmsGain::Rounded).front();
}

NormalisedSum add_layer_norm(const at::Tensor& input, const at::Tensor& residual,
                             const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  const variable_list both = Norm::apply(input, weight, bias, residual, epsilon, RmsGain::Rounded);
  return {both[1], both[0]};
}

}  // namespace sherd::ops
