#include "ops/linear.h"

#include <algorithm>
#include <functional>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/shared/gradient.h"
#include "ops/shared/inference_linear.h"
#include "ops/shared/joined_linears.h"
#include "ops/shared/kept_input.h"
#include "ops/shared/lora_linears.h"
#include "ops/shared/matrix.h"
#include "ops/shared/recorded.h"
#include "ops/shared/side_by_side.h"
#include "ops/shared/weight_products.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// As profiles show it: with a frozen weight there is one product.
const char* backward_name(bool wants_weight) {
  return wants_weight ? "sherd::linear_backward" : "sherd::linear_input_gradient";
}

// LibTorch's profiler keeps nothing of an undefined tensor.
Recorded with_bias(Recorded recorded, const at::Tensor& bias) {
  if (bias.defined()) {
    recorded.emplace_back(bias);
  }
  return recorded;
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            bool after_norm) {
    RECORD_FUNCTION("sherd::linear", Recorded({input, recorded_weight(weight)}));
    context->save_for_backward({keep_input(*context, input, weight.requires_grad(), after_norm),
                                weight, bias.value_or(at::Tensor())});
    const Backend& backend = choose_backend(*context, input);
    return with_leading_sizes(
        weight_product(backend, as_matrix(input), weight, bias.value_or(at::Tensor())),
        input.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &weight = saved[1], &bias = saved[2];
    RECORD_FUNCTION(backward_name(context->needs_input_grad(1)),
                    with_bias({gradients[0], recorded_weight(weight)}, bias));
    once_differentiable("sherd::linear");
    const Backend& backend = chosen_backend(*context);
    const at::Tensor grad_output = as_matrix(gradients[0]);
    at::Tensor grad_input;
    at::Tensor grad_weight;
    at::Tensor grad_bias;
    if (context->needs_input_grad(0)) {
      grad_input =
          with_leading_sizes(input_gradient(backend, grad_output, weight), gradients[0].sizes());
    }
    if (context->needs_input_grad(1)) {
      const at::Tensor input = as_matrix(kept_input(*context, saved[0]));
      grad_weight = deliver_gradient(
          weight, [&](at::Tensor& out) { backend.mm(out, grad_output.t(), input); });
    }
    if (bias.defined() && context->needs_input_grad(2)) {
      grad_bias = deliver_sum(bias, backend.column_sums(grad_output));
    }
    return {grad_input, grad_weight, grad_bias, {}};
  }
};

// Has `compute(outs)` fill tensors of all weights' gradients, as deliver_gradient() does for one.
void deliver_gradients(const variable_list& weights, variable_list& outs, variable_list& delivered,
                       const std::function<void(const variable_list&)>& compute) {
  if (outs.size() == weights.size()) {
    compute(outs);
    return;
  }
  const size_t next = outs.size();
  delivered[next] = deliver_gradient(weights[next], [&](at::Tensor& out) {
    outs.push_back(out);
    deliver_gradients(weights, outs, delivered, compute);
  });
}

// One product over several weights that all have a gradient or none, and as many biases or none.
struct Linears : torch::autograd::Function<Linears> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               at::TensorList weights, at::TensorList biases) {
    const at::Tensor joined = joined_weights(weights);
    RECORD_FUNCTION("sherd::linear", Recorded({input, recorded_weight(joined)}));
    variable_list saved = {
        keep_input(*context, input, weights.front().requires_grad(), /*after_norm=*/true)};
    saved.insert(saved.end(), weights.begin(), weights.end());
    saved.insert(saved.end(), biases.begin(), biases.end());
    context->save_for_backward(saved);
    context->saved_data[kWeights] = static_cast<int64_t>(weights.size());
    const Backend& backend = choose_backend(*context, input);
    return columns_of_weights(joined_product(backend, as_matrix(input), joined, biases), weights,
                              input.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto first_bias = saved.begin() + 1 + context->saved_data[kWeights].toInt();
    const variable_list weights(saved.begin() + 1, first_bias), biases(first_bias, saved.end());
    const at::Tensor weight = joined_weights(weights);
    const at::Tensor grad_output = joined_gradients(gradients);
    const size_t bias = 1 + weights.size();
    const bool wants_weights = context->needs_input_grad({torch::autograd::IndexRange(1, bias)});
    RECORD_FUNCTION(backward_name(wants_weights),
                    with_bias({grad_output, recorded_weight(weight)},
                              biases.empty() ? at::Tensor() : biases[0]));
    once_differentiable("sherd::linear");
    const Backend& backend = chosen_backend(*context);
    variable_list result(saved.size());  // of the input, the weights and the biases
    if (context->needs_input_grad(0)) {
      result[0] =
          with_leading_sizes(input_gradient(backend, grad_output, weight), gradients[0].sizes());
    }
    if (wants_weights) {
      const at::Tensor input = as_matrix(kept_input(*context, saved[0]));
      const variable_list grads = weight_gradients(backend, weights, grad_output, input);
      std::copy(grads.begin(), grads.end(), result.begin() + 1);
    }
    if (!biases.empty() &&
        context->needs_input_grad({torch::autograd::IndexRange(bias, saved.size())})) {
      const variable_list grads = bias_gradients(biases, backend.column_sums(grad_output));
      std::copy(grads.begin(), grads.end(), result.begin() + static_cast<int64_t>(bias));
    }
    return result;
  }

 private:
  static constexpr const char* kWeights = "weights";  // how many there are

  static variable_list bias_gradients(const variable_list& biases, const at::Tensor& sums) {
    variable_list delivered;
    int64_t begin = 0;
    for (const at::Tensor& bias : biases) {
      delivered.push_back(deliver_sum(bias, sums.narrow(0, begin, bias.size(0))));
      begin += bias.size(0);
    }
    return delivered;
  }
  static variable_list weight_gradients(const Backend& backend, const variable_list& weights,
                                        const at::Tensor& grad_output, const at::Tensor& input) {
    variable_list outs, delivered(weights.size());
    deliver_gradients(weights, outs, delivered, [&](const variable_list& places) {
      if (at::Tensor joined = joined_rows(places); joined.defined()) {
        backend.mm(joined, grad_output.t(), input);
        return;
      }
      int64_t begin = 0;
      for (at::Tensor place : places) {
        backend.mm(place, grad_output.narrow(1, begin, place.size(0)).t(), input);
        begin += place.size(0);
      }
    });
    return delivered;
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias, const LowRank& update) {
  if (update) {
    return lora_linear(input, weight, bias, update, /*after_norm=*/false);
  }
  return at::GradMode::is_enabled() ? Linear::apply(input, weight, bias, /*after_norm=*/false)
                                    : inference_linear(input, weight, bias);
}

at::Tensor linear_after_norm(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, const LowRank& update) {
  if (update) {
    return lora_linear(input, weight, bias, update, /*after_norm=*/true);
  }
  return at::GradMode::is_enabled() ? Linear::apply(input, weight, bias, /*after_norm=*/true)
                                    : inference_linear(input, weight, bias);
}

std::vector<at::Tensor> linears_after_norm(const at::Tensor& input,
                                           const std::vector<at::Tensor>& weights,
                                           const std::vector<at::Tensor>& biases,
                                           const std::vector<LowRank>& updates) {
  if (std::any_of(updates.begin(), updates.end(), [](const auto& one) { return bool(one); })) {
    return lora_linears(input, weights, biases, updates, /*after_norm=*/true);
  }
  if (is_one_product(input, weights, biases)) {
    return at::GradMode::is_enabled()
               ? Linears::apply(input, at::TensorList(weights), at::TensorList(biases))
               : joined_inference(input, weights, biases);
  }
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < weights.size(); ++i) {
    outputs.push_back(linear_after_norm(input, weights[i],
                                        biases.empty() ? std::nullopt : std::optional(biases[i])));
  }
  return outputs;
}

}  // namespace sherd::ops
