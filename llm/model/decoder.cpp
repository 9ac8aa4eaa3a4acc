#include "llm/model/decoder.h"

#include <ATen/TensorOperators.h>

namespace llm::model {

DecoderLayerImpl::DecoderLayerImpl(LayerParts parts) : parts_(std::move(parts)) {
  for (const auto& [name, module] : parts_.names) {
    register_module(name, module);
  }
}

at::Tensor DecoderLayerImpl::forward(const at::Tensor& input_TD, const Context& context) {
  const bool normalised_residual = parts_.residual_is_normalised;
  const at::Tensor normalised = parts_.attention_norm->forward(input_TD);
  const auto [attended, normalised_again] = parts_.feed_forward_norm->forward(
      parts_.attention->forward(normalised, context), normalised_residual ? normalised : input_TD);
  return (normalised_residual ? normalised_again : attended) +
         parts_.feed_forward->forward(normalised_again);
}

DecoderImpl::DecoderImpl(const DecoderParts& parts)
    : embedding_(register_module(parts.embedding_name, parts.embedding)),
      embedding_norm_(parts.embedding_norm) {
  if (embedding_norm_) {
    register_module(parts.embedding_norm_name, embedding_norm_);
  }
  auto list = register_module(parts.layers_name, std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < parts.layers; ++i) {
    layers_.push_back(
        list->register_module(std::to_string(i), sherd::Unit<DecoderLayer>(parts.layer(i))));
  }
  final_norm_ = register_module(parts.final_norm_name, parts.final_norm);
}

at::Tensor DecoderImpl::forward(const at::Tensor& ids_T, const Context& context) {
  at::Tensor hidden_TD = embedding_->forward(ids_T);
  if (embedding_norm_) {
    hidden_TD = embedding_norm_->forward(hidden_TD);
  }
  for (auto& layer : layers_) {
    hidden_TD = layer(hidden_TD, context);
  }
  return hidden_TD;
}

at::Tensor DecoderImpl::final_norm(const at::Tensor& hidden) const {
  return final_norm_->forward(hidden);
}

}  // namespace llm::model
