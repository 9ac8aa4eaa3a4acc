#include "ops/embedding.h"

#include <ATen/ops/_unique.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Adds the gradient of each row that `ids` [n] name, summed in fp32 and rounded once.
void add_rows(const at::Tensor& out, const at::Tensor& ids, const at::Tensor& gradient) {
  const int64_t width = out.size(1);
  const auto [rows, place] = at::_unique(ids, /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor sums =
      at::zeros({rows.numel(), width}, out.options().dtype(statistics_dtype(out.scalar_type())));
  sums.index_add_(0, place, gradient.reshape({-1, width}).to(sums.scalar_type()));
  sums.add_(out.index_select(0, rows));
  out.index_copy_(0, rows, sums.to(out.scalar_type()));
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids,
                            const at::Tensor& weight) {
    RECORD_FUNCTION("sherd::embedding", {});
    context->save_for_backward({ids, weight});
    return at::embedding(weight, ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::embedding_backward", {});
    once_differentiable("sherd::embedding");
    const auto saved = context->get_saved_variables();
    const at::Tensor &ids = saved[0], &weight = saved[1];
    at::Tensor grad_weight;
    const auto slot = GradSlot::of(weight);
    if (context->needs_input_grad(1) && slot) {
      slot.add([&](at::Tensor& out) { add_rows(out, ids.reshape({-1}), gradients[0]); });
    } else if (context->needs_input_grad(1)) {
      grad_weight = deliver_gradient(
          weight, [&](at::Tensor& out) { add_rows(out.zero_(), ids.reshape({-1}), gradients[0]); });
    }
    return {at::Tensor(), grad_weight};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight) {
  return Embedding::apply(ids, weight);
}

}  // namespace sherd::ops
