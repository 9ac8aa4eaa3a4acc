#include "llm/model/self_attention.h"

#include <utility>

#include <ATen/ops/unsafe_split_with_sizes.h>

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
      has_window_rope_(config.window_rope && config.layers_with_window.contains(layer)),
      scores_(config.scores_of(layer)),
      head_norm_(config.head_norm),
      widths_({config.heads * head_size_, config.key_heads * head_size_,
               config.key_heads * head_size_}) {
  add_projections(config);
  add_norms(config);
}

void RotaryAttention::add_projections(const DecoderConfig& config) {
  const double std = config.initializer_range;
  const bool bias = config.query_key_value_bias;
  const auto add = [&](const char* name, int64_t outputs) {
    return register_module(name, Projection(config.hidden_size, outputs, std, bias));
  };
  if (config.fused_projections) {
    qkv_proj_ = add("qkv_proj", widths_[0] + widths_[1] + widths_[2]);
  } else {
    // Side by side in registration order, so that one product can serve them.
    q_proj_ = add("q_proj", widths_[0]);
    k_proj_ = add("k_proj", widths_[1]);
    v_proj_ = add("v_proj", widths_[2]);
  }
  o_proj_ = register_module("o_proj", Projection(widths_[0], config.hidden_size, std));
}

void RotaryAttention::add_norms(const DecoderConfig& config) {
  if (head_norm_ == HeadNorm::None) {
    return;
  }
  const auto add = [&](const char* name, int64_t width) {
    const int64_t normalised = head_norm_ == HeadNorm::PerHead ? head_size_ : width;
    return register_module(
        name, std::make_shared<RmsNormImpl>(normalised, config.norm_epsilon, config.norm_gain));
  };
  q_norm_ = add("q_norm", widths_[0]);
  k_norm_ = add("k_norm", widths_[1]);
}

std::vector<at::Tensor> RotaryAttention::project(const at::Tensor& normalised_TD,
                                                 const Context& context) const {
  const at::Tensor& keys = context.dropout_keys_T;
  return qkv_proj_
             ? at::unsafe_split_with_sizes(qkv_proj_->after_norm(normalised_TD, keys), widths_, 1)
             : after_norm({q_proj_, k_proj_, v_proj_}, normalised_TD, keys);
}

at::Tensor RotaryAttention::finished_heads(const at::Tensor& packed,
                                           const std::shared_ptr<RmsNormImpl>& norm,
                                           const Context& context) const {
  at::Tensor heads =
      split_heads(head_norm_ == HeadNorm::Whole ? norm->forward(packed) : packed, head_size_);
  if (head_norm_ == HeadNorm::PerHead) {
    heads = norm->forward(heads);
  }
  if (!is_rotary_) {
    return heads;
  }
  return with_position(heads, has_window_rope_ ? context.window_rotary : context.rotary);
}

at::Tensor RotaryAttention::forward(const at::Tensor& normalised_TD, const Context& context) const {
  auto parts = project(normalised_TD, context);
  const auto take = [&](size_t part) { return std::exchange(parts[part], at::Tensor()); };
  const at::Tensor query = finished_heads(take(0), q_norm_, context);
  const at::Tensor key = finished_heads(take(1), k_norm_, context);
  // Columns of one matrix with the two, which attention would keep for it: a copy is smaller.
  const at::Tensor value = split_heads(take(2), head_size_).contiguous();
  return o_proj_->forward(attend(query, key, value, context, layer_, scores_),
                          context.dropout_keys_T);
}

GatedMlp::GatedMlp(const DecoderConfig& config)
    : is_gelu_(config.gelu_gate), inner_(config.feed_forward_size) {
  const int64_t width = config.hidden_size;
  const double std = config.initializer_range;
  if (config.fused_projections) {
    gate_up_proj_ = register_module("gate_up_proj", Projection(width, 2 * inner_, std));
  } else {
    gate_proj_ = register_module("gate_proj", Projection(width, inner_, std));
    up_proj_ = register_module("up_proj", Projection(width, inner_, std));
  }
  down_proj_ = register_module("down_proj", Projection(inner_, width, std));
}

at::Tensor GatedMlp::forward(const at::Tensor& normalised_TD, const Context& context) const {
  const at::Tensor& keys = context.dropout_keys_T;
  const auto parts = gate_up_proj_
                         ? at::unsafe_split_with_sizes(
                               gate_up_proj_->after_norm(normalised_TD, keys), {inner_, inner_}, 1)
                         : after_norm({gate_proj_, up_proj_}, normalised_TD, keys);
  const sherd::ops::LowRank update = low_rank_of(*down_proj_, keys);
  return is_gelu_ ? sherd::ops::geglu_linear(parts[0], parts[1], down_proj_->weight, update)
                  : sherd::ops::swiglu_linear(parts[0], parts[1], down_proj_->weight, update);
}

}  // namespace llm::model
