#include "llm/model/parts.h"

#include <optional>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "ops/embedding.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"

namespace llm::model {
namespace {

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

sherd::ops::LowRank low_rank_of(const sherd::LoraModule& module, const at::Tensor& dropout_keys) {
  const sherd::LoraAdapter* const adapter = module.lora();
  if (adapter == nullptr || !adapter->enabled) {
    return {};
  }
  return {
      .A = adapter->A,
      .B = adapter->B,
      .scale = adapter->scale,
      .dropout = {
          .probability = adapter->dropout, .row_keys = dropout_keys, .module_key = adapter->key}};
}

ProjectionImpl::ProjectionImpl(int64_t inputs, int64_t outputs, double std, bool has_bias)
    : weight(
          register_parameter("weight", at::empty({outputs, inputs}, at::kFloat).normal_(0, std))) {
  if (has_bias) {
    bias = register_parameter("bias", at::zeros({outputs}, at::kFloat));
  }
}

at::Tensor ProjectionImpl::forward(const at::Tensor& input, const at::Tensor& dropout_keys) const {
  return sherd::ops::linear(input, weight, optional_of(bias), low_rank_of(*this, dropout_keys));
}

at::Tensor ProjectionImpl::after_norm(const at::Tensor& normalised,
                                      const at::Tensor& dropout_keys) const {
  return sherd::ops::linear_after_norm(normalised, weight, optional_of(bias),
                                       low_rank_of(*this, dropout_keys));
}

std::vector<at::Tensor> after_norm(const std::vector<Projection>& projections,
                                   const at::Tensor& normalised, const at::Tensor& dropout_keys) {
  std::vector<at::Tensor> weights, biases;
  std::vector<sherd::ops::LowRank> updates;
  for (const Projection& projection : projections) {
    weights.push_back(projection->weight);
    if (projection->bias.defined()) {
      biases.push_back(projection->bias);
    }
    updates.push_back(low_rank_of(*projection, dropout_keys));
  }
  return sherd::ops::linears_after_norm(normalised, weights, biases, updates);
}

TokenEmbeddingImpl::TokenEmbeddingImpl(int64_t vocabulary, int64_t width, double std)
    : weight(register_parameter("weight",
                                at::empty({vocabulary, width}, at::kFloat).normal_(0, std))) {}

at::Tensor TokenEmbeddingImpl::forward(const at::Tensor& ids) const {
  return sherd::ops::embedding(ids, weight);
}

RmsNormImpl::RmsNormImpl(int64_t width, double epsilon, sherd::ops::RmsGain gain)
    : epsilon_(epsilon), gain_(gain) {
  weight = register_parameter("weight", at::full({width}, neutral_weight(), at::kFloat));
}

double RmsNormImpl::neutral_weight() const {
  return gain_ == sherd::ops::RmsGain::OnePlus ? 0 : 1;
}

at::Tensor RmsNormImpl::forward(const at::Tensor& input) const {
  return sherd::ops::rms_norm(input, weight, epsilon_, gain_);
}

sherd::ops::NormalisedSum RmsNormImpl::forward(const at::Tensor& input,
                                               const at::Tensor& residual) const {
  return sherd::ops::add_rms_norm(input, residual, weight, epsilon_, gain_);
}

LayerNormImpl::LayerNormImpl(int64_t width, double epsilon)
    : weight(register_parameter("weight", at::ones({width}, at::kFloat))),
      bias(register_parameter("bias", at::zeros({width}, at::kFloat))),
      epsilon_(epsilon) {}

at::Tensor LayerNormImpl::forward(const at::Tensor& input) const {
  return sherd::ops::layer_norm(input, weight, bias, epsilon_);
}

sherd::ops::NormalisedSum LayerNormImpl::forward(const at::Tensor& input,
                                                 const at::Tensor& residual) const {
  return sherd::ops::add_layer_norm(input, residual, weight, bias, epsilon_);
}

}  // namespace llm::model
