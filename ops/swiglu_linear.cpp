#include "ops/swiglu_linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/shared/gradient.h"
#include "ops/shared/inference_linear.h"
#include "ops/shared/low_rank_sum.h"
#include "ops/shared/matrix.h"
#include "ops/shared/recorded.h"
#include "ops/shared/weight_products.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SiluGate {
  static constexpr const char* kForward = "sherd::swiglu_linear";
  static constexpr const char* kBackward = "sherd::swiglu_linear_backward";
  static constexpr auto kGate = &Backend::swiglu;
  static constexpr auto kGateBackward = &Backend::swiglu_backward;
  static constexpr auto kGateBackwardWithProduct = &Backend::swiglu_backward_with_product;
};
struct GeluGate {
  static constexpr const char* kForward = "sherd::geglu_linear";
  static constexpr const char* kBackward = "sherd::geglu_linear_backward";
  static constexpr auto kGate = &Backend::geglu;
  static constexpr auto kGateBackward = &Backend::geglu_backward;
  static constexpr auto kGateBackwardWithProduct = &Backend::geglu_backward_with_product;
};

constexpr const char* kUpdate = "update";

// `as` and `bs`: of the update; none without one.
template <class Gate>
struct GatedLinear : torch::autograd::Function<GatedLinear<Gate>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up,
                            const at::Tensor& weight, at::TensorList as, at::TensorList bs,
                            const c10::intrusive_ptr<LowRankSum>& update) {
    RECORD_FUNCTION(Gate::kForward, Recorded({gate, recorded_weight(weight), as, bs}));
    const Backend& backend = choose_backend(*context, gate);
    const at::Tensor product = as_matrix((backend.*Gate::kGate)(gate, up));
    variable_list output = {weight_product(backend, product, weight)};
    variable_list saved = {gate, up, weight};
    if (!as.empty()) {
      context->saved_data[kUpdate] = at::IValue::make_capsule(update);
      const at::Tensor hidden = update->add(backend, output, product, as, bs);
      saved.insert(saved.end(), {as.front(), bs.front(), hidden});
    }
    context->save_for_backward(saved);
    return with_leading_sizes(output[0], gate.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Backend& backend = chosen_backend(*context);
    const at::Tensor &gate = saved[0], &up = saved[1], &weight = saved[2];
    const Update update = update_of(*context, saved);
    const bool wants_weight = context->needs_input_grad(2);
    const bool wants_product = wants_weight || (update && update.as[0].requires_grad());
    const auto with_product = wants_product ? backend.*Gate::kGateBackwardWithProduct : nullptr;
    const bool in_one = with_product != nullptr;
    RECORD_FUNCTION(Gate::kBackward,
                    Recorded({gradients[0], recorded_weight(weight), static_cast<int64_t>(in_one),
                              static_cast<int64_t>(wants_weight), update.as, update.bs}));
    once_differentiable(Gate::kForward);
    const at::Tensor grad_output = as_matrix(gradients[0]);
    at::Tensor grad_hidden;
    variable_list result(update ? kInputs + 2 : kInputs);
    const auto deliver = [&](const at::Tensor& any_product) {
      const at::Tensor product = as_matrix(any_product);
      if (wants_weight) {
        result[2] = deliver_gradient(
            weight, [&](at::Tensor& out) { backend.mm(out, grad_output.t(), product); });
      }
      if (update) {
        result[3] = update.sum->deliver_as(backend, grad_hidden, product, update.as)[0];
      }
    };
    if (update) {
      grad_hidden = update.sum->hidden_gradient(backend, {grad_output}, update.bs);
      result[4] = update.sum->deliver_bs(backend, {grad_output}, update.hidden, update.bs)[0];
    }
    if (wants_product && !in_one) {
      deliver((backend.*Gate::kGate)(gate, up));
    }
    at::Tensor grad_product = input_gradient(backend, grad_output, weight);
    if (update) {
      update.sum->add_input_gradient(backend, grad_product, grad_hidden, update.as);
    }
    grad_product = grad_product.view(gate.sizes());
    const SwiGluGradients grads = in_one ? with_product(grad_product, gate, up)
                                         : (backend.*Gate::kGateBackward)(grad_product, gate, up);
    result[0] = grads.gate;
    result[1] = grads.up;
    if (in_one) {
      deliver(grad_product);
    }
    return result;
  }

 private:
  static constexpr size_t kInputs = 4;  // without an update's; the last is no tensor

  struct Update {
    c10::intrusive_ptr<LowRankSum> sum;
    at::Tensor hidden;
    variable_list as, bs;
    explicit operator bool() const { return static_cast<bool>(sum); }
  };
  static Update update_of(AutogradContext& context, const variable_list& saved) {
    const auto found = context.saved_data.find(kUpdate);
    if (found == context.saved_data.end()) {
      return {};
    }
    return {c10::static_intrusive_pointer_cast<LowRankSum>(found->second.toCapsule()),
            saved[5],
            {saved[3]},
            {saved[4]}};
  }
};

template <class Gate>
at::Tensor gated_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                        const LowRank& of) {
  const auto update = c10::make_intrusive<LowRankSum>(std::vector{of});
  const variable_list as = LowRankSum::as_of({of}), bs = LowRankSum::bs_of({of});
  if (at::GradMode::is_enabled()) {
    return GatedLinear<Gate>::apply(gate, up, weight, at::TensorList(as), at::TensorList(bs),
                                    update);
  }
  const Backend& backend = backend_of(gate);
  const at::Tensor product = (backend.*Gate::kGate)(gate, up);
  const at::Tensor output = inference_linear(product, weight);
  if (of) {
    variable_list matrix = {as_matrix(output)};
    static_cast<void>(update->add(backend, matrix, as_matrix(product), as, bs));
  }
  return output;
}

}  // namespace

at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                         const LowRank& update) {
  return gated_linear<SiluGate>(gate, up, weight, update);
}

at::Tensor geglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                        const LowRank& update) {
  return gated_linear<GeluGate>(gate, up, weight, update);
}

}  // namespace sherd::ops
