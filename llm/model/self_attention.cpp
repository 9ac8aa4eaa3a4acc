#include "llm/model/self_attention.h"

#include <memory>
#include <utility>
#include <vector>

#include "ops/linear.h"
#include "ops/swiglu_linear.h"

namespace llm::model {
namespace {

// [T, N × H] -> [T, N, H]: a view
at::Tensor split_heads(const at::Tensor& packed, int64_t head_size) {
  return packed.view({packed.size(0), packed.size(1) / head_size, head_size});
}

}  // namespace

RotaryAttention::RotaryAttention(const DecoderConfig& config, int64_t layer)
    : layer_(layer),
      head_size_(config.head_size),
      is_rotary_(!config.layers_without_rope.contains(layer)),
      scores_(config.scores_of(layer)) {
  const double std = config.initializer_range;
  const int64_t queries = config.heads * head_size_, keys = config.key_heads * head_size_;
  const bool bias = config.query_key_value_bias;
  // Side by side in registration order, so that one product can serve them.
  q_proj_ = register_module("q_proj", Projection(config.hidden_size, queries, std, bias));
  k_proj_ = register_module("k_proj", Projection(config.hidden_size, keys, std, bias));
  v_proj_ = register_module("v_proj", Projection(config.hidden_size, keys, std, bias));
  o_proj_ = register_module("o_proj", Projection(queries, config.hidden_size, std));
  if (config.head_norm == HeadNorm::PerHead) {
    q_norm_ =
        register_module("q_norm", std::make_shared<RmsNormImpl>(head_size_, config.norm_epsilon));
    k_norm_ =
        register_module("k_norm", std::make_shared<RmsNormImpl>(head_size_, config.norm_epsilon));
  }
}

at::Tensor RotaryAttention::forward(const at::Tensor& normalised_TD, const Context& context) const {
  std::vector<at::Tensor> biases;
  if (q_proj_->bias.defined()) {
    biases = {q_proj_->bias, k_proj_->bias, v_proj_->bias};
  }
  auto parts = sherd::ops::linears_after_norm(
      normalised_TD, {q_proj_->weight, k_proj_->weight, v_proj_->weight}, biases);
  const auto take_heads = [&](size_t part) {
    return split_heads(std::exchange(parts[part], at::Tensor()), head_size_);
  };
  const auto with_norm_and_position = [&](at::Tensor heads, const auto& norm) {
    if (norm) {
      heads = norm->forward(heads);
    }
    return is_rotary_ ? with_position(heads, context) : heads;
  };
  const at::Tensor query = with_norm_and_position(take_heads(0), q_norm_);
  const at::Tensor key = with_norm_and_position(take_heads(1), k_norm_);
  // Columns of one matrix with the two, which attention would keep for it: a copy is smaller.
  const at::Tensor value = take_heads(2).contiguous();
  return o_proj_->forward(attend(query, key, value, context, layer_, scores_));
}

GatedMlp::GatedMlp(const DecoderConfig& config) {
  const int64_t width = config.hidden_size, inner = config.feed_forward_size;
  const double std = config.initializer_range;
  gate_proj_ = register_module("gate_proj", Projection(width, inner, std));
  up_proj_ = register_module("up_proj", Projection(width, inner, std));
  down_proj_ = register_module("down_proj", Projection(inner, width, std));
}

at::Tensor GatedMlp::forward(const at::Tensor& normalised_TD) const {
  const auto parts =
      sherd::ops::linears_after_norm(normalised_TD, {gate_proj_->weight, up_proj_->weight});
  return sherd::ops::swiglu_linear(parts[0], parts[1], down_proj_->weight);
}

}  // namespace llm::model
