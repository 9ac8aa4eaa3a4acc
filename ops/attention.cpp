#include "ops/attention.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/shared/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& alibi_slopes) {
    RECORD_FUNCTION("sherd::attention", {});
    const at::Tensor slopes = alibi_slopes.value_or(at::Tensor());
    const AttentionOutput output =
        choose_backend(*context, query).attention(query, key, value, slopes);
    context->save_for_backward({query, key, value, slopes, output.log_sums_BNT});
    return output.mixed_BTN;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::attention_backward", {});
    once_differentiable("sherd::attention");
    const auto saved = context->get_saved_variables();
    const AttentionGradients grads = chosen_backend(*context).attention_backward(
        saved[0], saved[1], saved[2], /*slopes=*/saved[3], /*log_sums=*/saved[4], gradients[0]);
    return {grads.query, grads.key, grads.value, at::Tensor()};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& alibi_slopes) {
  return Attention::apply(query, key, value, alibi_slopes);
}

at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& positions,
                            const std::optional<at::Tensor>& alibi_slopes) {
  return backend_of(query).decode_attention(query, key, value, positions,
                                            alibi_slopes.value_or(at::Tensor()));
}

}  // namespace sherd::ops
