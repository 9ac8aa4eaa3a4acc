#include "llm/model/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>

namespace llm::model {

DecoderLayerImpl::DecoderLayerImpl(LayerParts parts) : parts_(std::move(parts)) {
  for (const auto& [name, module] : parts_.names) {
    register_module(name, module);
  }
}

at::Tensor DecoderLayerImpl::forward(const at::Tensor& input_TD, const Context& context) {
  const bool normalised_residual = parts_.residual_is_normalised;
  const at::Tensor normalised =
      parts_.attention_norm ? parts_.attention_norm->forward(input_TD) : input_TD;
  const at::Tensor attended =
      to_be_added(parts_.attention->forward(normalised, context), parts_.attended_norm);
  const at::Tensor& residual = normalised_residual ? normalised : input_TD;
  sherd::ops::NormalisedSum sum;
  if (parts_.feed_forward_norm) {
    sum = parts_.feed_forward_norm->forward(attended, residual);
  } else {
    sum.sum = sum.normalised = attended + residual;
  }
  return (normalised_residual ? sum.normalised : sum.sum) +
         to_be_added(parts_.feed_forward->forward(sum.normalised, context), parts_.fed_norm);
}

at::Tensor DecoderLayerImpl::to_be_added(const at::Tensor& output_TD,
                                         const std::shared_ptr<NormImpl>& norm) const {
  const at::Tensor normalised = norm ? norm->forward(output_TD) : output_TD;
  return parts_.residual_scale == 1 ? normalised : normalised * parts_.residual_scale;
}

DecoderImpl::DecoderImpl(const DecoderParts& parts)
    : embedding_(register_module(parts.embedding_name, parts.embedding)),
      embedding_scale_(parts.embedding_scale),
      rounds_embedding_scale_(parts.rounds_embedding_scale),
      embedding_norm_(parts.embedding_norm) {
  if (parts.position_embedding) {
    position_embedding_ = register_module(parts.position_embedding_name, parts.position_embedding);
  }
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

at::Tensor DecoderImpl::scaled(const at::Tensor& embedded) const {
  if (embedding_scale_ == 1) {
    return embedded;
  }
  const double scale =
      rounds_embedding_scale_
          ? at::scalar_tensor(embedding_scale_, at::device(at::kCPU).dtype(embedded.scalar_type()))
                .item<double>()
          : embedding_scale_;
  return embedded * scale;
}

at::Tensor DecoderImpl::forward(const at::Tensor& ids_T, const Context& context) {
  at::Tensor hidden_TD = scaled(embedding_->forward(ids_T));
  if (position_embedding_) {
    hidden_TD = hidden_TD + position_embedding_->forward(context.positions);
  }
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
