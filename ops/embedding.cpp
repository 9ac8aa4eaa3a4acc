#include "ops/embedding.h"

#include <ATen/ops/_unique.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// out = sum of the gradient's rows by id; frequent ids would lose small terms if summed in bf16.
void scatter_rows(at::Tensor& out, const at::Tensor& ids, const at::Tensor& gradient) {
  out.zero_();
  const auto sum_dtype = statistics_dtype(out.scalar_type());
  if (sum_dtype == out.scalar_type()) {
    out.index_add_(0, ids, gradient);
    return;
  }
  const auto [present, place] = at::_unique(ids, /*sorted=*/true, /*return_inverse=*/true);
  at::Tensor sums = at::zeros({present.size(0), out.size(1)}, gradient.options().dtype(sum_dtype));
  sums.index_add_(0, place, gradient.to(sum_dtype));
  out.index_copy_(0, present, sums.to(out.scalar_type()));
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids,
                            const at::Tensor& weight) {
    context->save_for_backward({ids, weight});
    return at::embedding(weight, ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &ids = saved[0], &weight = saved[1];
    at::Tensor grad_weight;
    if (context->needs_input_grad(1)) {
      grad_weight = deliver_gradient(weight, [&](at::Tensor& out) {
        scatter_rows(out, ids.reshape({-1}), gradients[0].reshape({-1, weight.size(1)}));
      });
    }
    return {at::Tensor(), grad_weight};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight) {
  return Embedding::apply(ids, weight);
}

}  // namespace sherd::ops
