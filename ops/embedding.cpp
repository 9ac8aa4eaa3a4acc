#include "ops/embedding.h"

#include <ATen/ops/embedding.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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
        // Sums in fp32 whatever the dtype; ATen's own embedding backward sums bf16 in bf16.
        out.zero_().index_add_(0, ids.reshape({-1}), gradients[0].reshape({-1, weight.size(1)}));
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
