#include "ops/linear.h"

#include <memory>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/recompute.h"
#include "ops/shared/gradient.h"
#include "ops/shared/inference_linear.h"
#include "ops/shared/matrix.h"
#include "ops/shared/products.h"
#include "ops/shared/recorded.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Where the input comes from that was not kept, in autograd's graph.
struct Source : torch::CustomClassHolder {
  std::shared_ptr<torch::autograd::Node> node;
  Recompute recompute = nullptr;

  // Null where the tensor cannot be computed again.
  static c10::intrusive_ptr<Source> of(const at::Tensor& tensor) {
    const Recompute recompute = recompute_of(tensor);
    if (recompute == nullptr) {
      return {};
    }
    auto source = c10::make_intrusive<Source>();
    source->node = tensor.grad_fn();
    source->recompute = recompute;
    return source;
  }
};

constexpr const char* kSource = "source";

// What the weight's gradient needs: the input, or the operator that computes it again.
void keep_input(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                const std::optional<at::Tensor>& bias, bool after_norm) {
  const auto source = after_norm ? Source::of(input) : c10::intrusive_ptr<Source>();
  if (source) {
    context->saved_data[kSource] = at::IValue::make_capsule(source);
  }
  const bool kept = weight.requires_grad() && !source;
  context->save_for_backward({kept ? input : at::Tensor(), weight, bias.value_or(at::Tensor())});
}

at::Tensor kept_input(AutogradContext* context, const at::Tensor& saved) {
  const auto found = context->saved_data.find(kSource);
  if (found == context->saved_data.end()) {
    return saved;
  }
  const auto source = c10::static_intrusive_pointer_cast<Source>(found->second.toCapsule());
  return source->recompute(*source->node);
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            bool after_norm) {
    RECORD_FUNCTION("sherd::linear", Recorded({input, weight}));
    keep_input(context, input, weight, bias, after_norm);
    const at::Tensor matrix = as_matrix(input);
    const Backend& backend = choose_backend(*context, input);
    at::Tensor product = at::empty({matrix.size(0), weight.size(0)}, matrix.options());
    if (bias) {
      backend.addmm(product, *bias, matrix, weight.t());
    } else {
      backend.mm(product, matrix, weight.t());
    }
    return with_leading_sizes(product, input.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    RECORD_FUNCTION("sherd::linear_backward", Recorded({gradients[0], saved[1]}));
    once_differentiable("sherd::linear");
    const Backend& backend = chosen_backend(*context);
    const at::Tensor &weight = saved[1], &bias = saved[2];
    const at::Tensor grad_output = as_matrix(gradients[0]);
    at::Tensor grad_input;
    at::Tensor grad_weight;
    at::Tensor grad_bias;
    if (context->needs_input_grad(0)) {
      grad_input =
          with_leading_sizes(product_of(backend, grad_output, weight), gradients[0].sizes());
    }
    if (context->needs_input_grad(1)) {
      const at::Tensor input = as_matrix(kept_input(context, saved[0]));
      grad_weight = deliver_gradient(
          weight, [&](at::Tensor& out) { backend.mm(out, grad_output.t(), input); });
    }
    if (bias.defined() && context->needs_input_grad(2)) {
      grad_bias = deliver_sum(bias, backend.column_sums(grad_output));
    }
    return {grad_input, grad_weight, grad_bias, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  return at::GradMode::is_enabled() ? Linear::apply(input, weight, bias, /*after_norm=*/false)
                                    : inference_linear(input, weight, bias);
}

at::Tensor linear_after_norm(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias) {
  return at::GradMode::is_enabled() ? Linear::apply(input, weight, bias, /*after_norm=*/true)
                                    : inference_linear(input, weight, bias);
}

}  // namespace sherd::ops
