#include "ops/linear.h"

#include <memory>

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/dispatch.h"
#include "ops/gradient.h"
#include "ops/matrix.h"
#include "ops/norm_again.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [columns], in fp32 or wider
at::Tensor sum_rows(const at::Tensor& matrix) {
  if (!cpu::serves(matrix)) {
    return matrix.sum(0, /*keepdim=*/false, statistics_dtype(matrix.scalar_type()));
  }
  const at::Tensor dense = matrix.contiguous();
  const int64_t width = dense.size(1);
  const cpu::ColumnSums sums(width);
  cpu::with_dtype(dense, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(dense.size(0), width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().add_rows(cpu::data<T>(dense), sums.of_thread(), width, begin, end);
    });
  });
  return sums.total();
}

// The norm whose output a tensor is, in autograd's graph.
struct Norm : torch::CustomClassHolder {
  std::shared_ptr<torch::autograd::Node> node;
  NormAgain again = nullptr;

  // Null where it is no norm's output.
  static c10::intrusive_ptr<Norm> of(const at::Tensor& tensor) {
    NormAgain again = rms_norm_again(tensor);
    if (again == nullptr) {
      again = layer_norm_again(tensor);
    }
    if (again == nullptr) {
      return {};
    }
    auto norm = c10::make_intrusive<Norm>();
    norm->node = tensor.grad_fn();
    norm->again = again;
    return norm;
  }
};

// What the weight's gradient needs: the input, or the norm that computes it again.
void keep_input(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                const std::optional<at::Tensor>& bias, bool after_norm) {
  const auto norm = after_norm ? Norm::of(input) : c10::intrusive_ptr<Norm>();
  if (norm) {
    context->saved_data["norm"] = at::IValue::make_capsule(norm);
  }
  const bool kept = weight.requires_grad() && !norm;
  context->save_for_backward({kept ? input : at::Tensor(), weight, bias.value_or(at::Tensor())});
}

at::Tensor kept_input(AutogradContext* context, const at::Tensor& saved) {
  const auto found = context->saved_data.find("norm");
  if (found == context->saved_data.end()) {
    return saved;
  }
  const auto norm = c10::static_intrusive_pointer_cast<Norm>(found->second.toCapsule());
  return norm->again(*norm->node);
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            bool after_norm) {
    RECORD_FUNCTION("sherd::linear", {});
    keep_input(context, input, weight, bias, after_norm);
    const at::Tensor matrix = as_matrix(input);
    const at::Tensor product =
        bias ? at::addmm(*bias, matrix, weight.t()) : at::mm(matrix, weight.t());
    return with_leading_sizes(product, input.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::linear_backward", {});
    once_differentiable("sherd::linear");
    const auto saved = context->get_saved_variables();
    const at::Tensor &weight = saved[1], &bias = saved[2];
    const at::Tensor grad_output = as_matrix(gradients[0]);
    at::Tensor grad_input;
    at::Tensor grad_weight;
    at::Tensor grad_bias;
    if (context->needs_input_grad(0)) {
      grad_input = with_leading_sizes(at::mm(grad_output, weight), gradients[0].sizes());
    }
    if (context->needs_input_grad(1)) {
      const at::Tensor input = as_matrix(kept_input(context, saved[0]));
      grad_weight = deliver_gradient(
          weight, [&](at::Tensor& out) { at::mm_out(out, grad_output.t(), input); });
    }
    if (bias.defined() && context->needs_input_grad(2)) {
      grad_bias =
          deliver_gradient(bias, [&](at::Tensor& out) { out.copy_(sum_rows(grad_output)); });
    }
    return {grad_input, grad_weight, grad_bias, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  return Linear::apply(input, weight, bias, /*after_norm=*/false);
}

at::Tensor linear_after_norm(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias) {
  return Linear::apply(input, weight, bias, /*after_norm=*/true);
}

}  // namespace sherd::ops
