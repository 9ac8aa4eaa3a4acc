#include "ops/embedding.h"

#include <vector>

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/shared/gradient.h"
#include "ops/shared/matrix.h"
#include "ops/shared/recorded.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// LibTorch has no such lookup on the meta device.
at::Tensor rows_of(const at::Tensor& weight, const at::Tensor& ids) {
  if (!weight.is_meta()) {
    return at::embedding(weight, ids);
  }
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(weight.size(1));
  return at::empty(sizes, weight.options());
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids,
                            const at::Tensor& weight) {
    RECORD_FUNCTION("sherd::embedding", Recorded({ids, weight}));
    choose_backend(*context, weight);
    context->save_for_backward({ids, weight});
    return rows_of(weight, ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::embedding_backward", Recorded({gradients[0]}));
    once_differentiable("sherd::embedding");
    const auto saved = context->get_saved_variables();
    const at::Tensor &ids = saved[0], &weight = saved[1];
    if (!context->needs_input_grad(1)) {
      return {at::Tensor(), at::Tensor()};
    }
    const auto add_to = [&](at::Tensor& out) {
      chosen_backend(*context).add_embedding_gradient(out, ids.reshape({-1}),
                                                      as_matrix(gradients[0]));
    };
    if (const auto slot = GradSlot::of(weight)) {
      slot.add(add_to);
      return {at::Tensor(), at::Tensor()};
    }
    return {at::Tensor(), deliver_gradient(weight, [&](at::Tensor& out) { add_to(out.zero_()); })};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight) {
  return Embedding::apply(ids, weight);
}

}  // namespace sherd::ops
