#include "llm/model/causal_lm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"

namespace llm::model {
namespace {

void check_right_padded(const at::Tensor& mask_BT) {
  const int64_t tokens = mask_BT.size(1);
  const bool grows = mask_BT.slice(1, 1).gt(mask_BT.slice(1, 0, tokens - 1)).any().item<bool>();
  TORCH_CHECK_VALUE(!grows,
                    "[CausalLm] attention_mask has a token after padding; expected padding on the "
                    "right of each row only");
}

}  // namespace

at::Tensor CausalLmImpl::loss_sum(const at::Tensor& input_ids_BT, const at::Tensor& labels_BT,
                                  const at::Tensor& attention_mask_BT) {
  check_right_padded(attention_mask_BT);
  const at::Tensor hidden = hidden_states(input_ids_BT, nullptr);
  // Position t of row b, which predicts label t + 1, is row b × T + t of the flattened batch.
  const at::Tensor places = labels_BT.slice(1, 1).ne(kIgnoredLabel).nonzero();
  const at::Tensor rows = places.select(1, 0) * labels_BT.size(1) + places.select(1, 1);
  const at::Tensor targets = labels_BT.reshape({-1}).index_select(0, rows + 1);
  const at::Tensor supervised = hidden.flatten(0, 1).index_select(0, rows);
  return sherd::ops::linear_cross_entropy(final_norm(supervised), head_weight(), targets,
                                          loss_chunk_tokens_);
}

at::Tensor CausalLmImpl::logits(const at::Tensor& input_ids_BT,
                                const at::Tensor& attention_mask_BT) {
  check_right_padded(attention_mask_BT);
  return sherd::ops::linear(final_norm(hidden_states(input_ids_BT, nullptr)), head_weight());
}

at::Tensor CausalLmImpl::decode(const at::Tensor& input_ids_BT, const at::Tensor& attention_mask_BT,
                                KvCache& cache) {
  const c10::AutoGradMode no_gradient(false);
  check_right_padded(attention_mask_BT);
  cache.begin(attention_mask_BT);
  const at::Tensor hidden = hidden_states(input_ids_BT, &cache);
  cache.advance();
  const at::Tensor last_B = attention_mask_BT.sum(1).sub_(1).clamp_min_(0);
  const at::Tensor every_row = at::arange(hidden.size(0), last_B.options());
  const at::Tensor ends = hidden.index({every_row, last_B});
  return sherd::ops::linear(final_norm(ends), head_weight());
}

}  // namespace llm::model
