#include "ops/shared/lora_linears.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/q8_0.h"
#include "ops/shared/gradient.h"
#include "ops/shared/inference_linear.h"
#include "ops/shared/joined_linears.h"
#include "ops/shared/kept_input.h"
#include "ops/shared/low_rank_sum.h"
#include "ops/shared/matrix.h"
#include "ops/shared/recorded.h"
#include "ops/shared/weight_products.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The base's products, as matrices.
variable_list base_outputs(const Backend& backend, const at::Tensor& matrix, at::TensorList weights,
                           at::TensorList biases, bool joins) {
  if (joins) {
    const at::Tensor weight = joined_weights(weights);
    RECORD_FUNCTION("sherd::linear", Recorded({matrix, recorded_weight(weight)}));
    return columns_of_weights(joined_product(backend, matrix, weight, biases), weights,
                              matrix.sizes());
  }
  variable_list outputs;
  for (size_t i = 0; i < weights.size(); ++i) {
    RECORD_FUNCTION("sherd::linear", Recorded({matrix, recorded_weight(weights[i])}));
    outputs.push_back(
        weight_product(backend, matrix, weights[i], biases.empty() ? at::Tensor() : biases[i]));
  }
  return outputs;
}

variable_list inference_outputs(const at::Tensor& matrix, at::TensorList weights,
                                at::TensorList biases) {
  if (is_one_product(matrix, weights, biases)) {
    return joined_inference(matrix, weights, biases);
  }
  variable_list outputs;
  for (size_t i = 0; i < weights.size(); ++i) {
    outputs.push_back(inference_linear(matrix, weights[i],
                                       biases.empty() ? std::nullopt : std::optional(biases[i])));
  }
  return outputs;
}

// What comes back through the base: Σ dY_i · W_i.
at::Tensor base_input_gradient(const Backend& backend, const variable_list& grads,
                               at::TensorList weights, bool joins) {
  if (joins) {
    const at::Tensor grad = joined_gradients(grads), weight = joined_weights(weights);
    RECORD_FUNCTION("sherd::linear_input_gradient", Recorded({grad, recorded_weight(weight)}));
    return input_gradient(backend, grad, weight);
  }
  at::Tensor grad_input;
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor& weight = weights[i];
    RECORD_FUNCTION("sherd::linear_input_gradient", Recorded({grads[i], recorded_weight(weight)}));
    if (i == 0) {
      grad_input = input_gradient(backend, grads[i], weight);
    } else if (q8_0::is_quantized(weight)) {
      grad_input.add_(input_gradient(backend, grads[i], weight));
    } else {
      backend.add_mm(grad_input, grads[i], weight);
    }
  }
  return grad_input;
}

// Σ dY_i · W_i + dH · A, and the gradients of what learns: as a rule the A's and B's alone.
struct LoraLinears : torch::autograd::Function<LoraLinears> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               at::TensorList weights, at::TensorList biases, at::TensorList as,
                               at::TensorList bs, const c10::intrusive_ptr<LowRankSum>& updates,
                               bool after_norm, bool joins) {
    const Backend& backend = choose_backend(*context, input);
    const at::Tensor matrix = as_matrix(input);
    variable_list outputs = base_outputs(backend, matrix, weights, biases, joins);
    RECORD_FUNCTION("sherd::lora_linear", Recorded({matrix, as, bs}));
    const at::Tensor hidden = updates->add(backend, outputs, matrix, as, bs);
    variable_list saved = {
        keep_input(*context, input, any_requires_grad(weights) || any_requires_grad(as),
                   after_norm),
        hidden};
    for (const at::TensorList part : {weights, biases, as, bs}) {
      saved.insert(saved.end(), part.begin(), part.end());
    }
    context->save_for_backward(saved);
    context->saved_data[kUpdates] = at::IValue::make_capsule(updates);
    context->saved_data[kWeights] = static_cast<int64_t>(weights.size());
    context->saved_data[kBiases] = static_cast<int64_t>(biases.size());
    context->saved_data[kJoins] = joins;
    for (at::Tensor& output : outputs) {
      output = with_leading_sizes(output, input.sizes());
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    once_differentiable("sherd::lora_linear");
    const Backend& backend = chosen_backend(*context);
    const auto updates = c10::static_intrusive_pointer_cast<LowRankSum>(
        context->saved_data.at(kUpdates).toCapsule());
    const Parts saved = parts_of(*context);
    const std::vector<int64_t> sizes = gradients[0].sizes().vec();
    std::transform(gradients.begin(), gradients.end(), gradients.begin(), as_matrix);
    Results results;
    if (context->needs_input_grad(0)) {
      results.input = base_input_gradient(backend, gradients, saved.weights,
                                          context->saved_data.at(kJoins).toBool());
    }
    const bool wants_weights = any_requires_grad(saved.weights);
    const at::Tensor input = wants_weights || any_requires_grad(saved.as)
                                 ? as_matrix(kept_input(*context, saved.input))
                                 : at::Tensor();
    {
      RECORD_FUNCTION("sherd::lora_linear_backward", Recorded({gradients[0], saved.as, saved.bs}));
      const at::Tensor grad_hidden = updates->hidden_gradient(backend, gradients, saved.bs);
      if (results.input.defined()) {
        updates->add_input_gradient(backend, results.input, grad_hidden, saved.as);
        results.input = with_leading_sizes(results.input, sizes);
      }
      results.as = updates->deliver_as(backend, grad_hidden, input, saved.as);
      results.bs = updates->deliver_bs(backend, gradients, saved.hidden, saved.bs);
    }
    results.weights = weight_gradients(backend, gradients, input, saved.weights);
    results.biases = bias_gradients(backend, gradients, saved.biases);
    return results.in_order();
  }

 private:
  static constexpr const char* kUpdates = "updates";
  static constexpr const char* kWeights = "weights";  // how many there are
  static constexpr const char* kBiases = "biases";
  static constexpr const char* kJoins = "joins";

  struct Parts {
    at::Tensor input, hidden;
    variable_list weights, biases, as, bs;
  };
  static Parts parts_of(AutogradContext& context) {
    const variable_list saved = context.get_saved_variables();
    const int64_t weights = context.saved_data.at(kWeights).toInt();
    const int64_t biases = context.saved_data.at(kBiases).toInt();
    const auto updates = (static_cast<int64_t>(saved.size()) - 2 - weights - biases) / 2;
    auto next = saved.begin() + 2;
    const auto take = [&](int64_t count) {
      const auto begin = next;
      next += count;
      return variable_list(begin, next);
    };
    Parts parts{saved[0], saved[1], {}, {}, {}, {}};
    parts.weights = take(weights);
    parts.biases = take(biases);
    parts.as = take(updates);
    parts.bs = take(updates);
    return parts;
  }

  // As forward takes them.
  struct Results {
    at::Tensor input;
    variable_list weights, biases, as, bs;
    [[nodiscard]] variable_list in_order() const {
      constexpr size_t kOthers = 3;  // arguments that are no tensors
      variable_list all = {input};
      for (const variable_list& part : {weights, biases, as, bs, variable_list(kOthers)}) {
        all.insert(all.end(), part.begin(), part.end());
      }
      return all;
    }
  };

  static variable_list weight_gradients(const Backend& backend, const variable_list& gradients,
                                        const at::Tensor& input, const variable_list& weights) {
    variable_list delivered(weights.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i].requires_grad()) {
        RECORD_FUNCTION("sherd::linear_weight_gradient", Recorded({gradients[i], weights[i]}));
        delivered[i] = deliver_gradient(
            weights[i], [&](at::Tensor& out) { backend.mm(out, gradients[i].t(), input); });
      }
    }
    return delivered;
  }
  static variable_list bias_gradients(const Backend& backend, const variable_list& gradients,
                                      const variable_list& biases) {
    variable_list delivered(biases.size());
    for (size_t i = 0; i < biases.size(); ++i) {
      if (biases[i].requires_grad()) {
        delivered[i] = deliver_sum(biases[i], backend.column_sums(gradients[i]));
      }
    }
    return delivered;
  }
};

}  // namespace

std::vector<at::Tensor> lora_linears(const at::Tensor& input, at::TensorList weights,
                                     at::TensorList biases, const std::vector<LowRank>& updates,
                                     bool after_norm) {
  const auto sum = c10::make_intrusive<LowRankSum>(updates);
  const variable_list as = LowRankSum::as_of(updates), bs = LowRankSum::bs_of(updates);
  if (at::GradMode::is_enabled()) {
    return LoraLinears::apply(input, weights, biases, at::TensorList(as), at::TensorList(bs), sum,
                              after_norm, is_one_product(input, weights, biases));
  }
  const at::Tensor matrix = as_matrix(input);
  variable_list outputs = inference_outputs(matrix, weights, biases);
  RECORD_FUNCTION("sherd::lora_linear", Recorded({matrix, as, bs}));
  static_cast<void>(sum->add(backend_of(input), outputs, matrix, as, bs));
  for (at::Tensor& output : outputs) {
    output = with_leading_sizes(output, input.sizes());
  }
  return outputs;
}

at::Tensor lora_linear(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, const LowRank& update,
                       bool after_norm) {
  const at::Tensor of_bias = bias.value_or(at::Tensor());
  const at::TensorList biases = bias ? at::TensorList(of_bias) : at::TensorList();
  return lora_linears(input, weight, biases, {update}, after_norm).front();
}

}  // namespace sherd::ops
