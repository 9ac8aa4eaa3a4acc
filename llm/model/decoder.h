#pragma once
// The decoder of every family: an embedding, layers of attention and feed-forward, a last norm.
// Families differ in the parts that they put into it and in the parts' names.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "llm/model/context.h"
#include "llm/model/parts.h"
#include "sherd/unit.h"

// Shapes: T tokens of all documents, D model width.

namespace llm::model {

/// Attention of one layer, from its projections to its output.
class AttentionImpl : public torch::nn::Module {
 public:
  /// [T, D] -> [T, D]
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& normalised_TD,
                                           const Context& context) const = 0;
};

/// The feed-forward part of one layer.
class FeedForwardImpl : public torch::nn::Module {
 public:
  /// [T, D] -> [T, D]
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& normalised_TD,
                                           const Context& context) const = 0;
};

/// Modules under the names that checkpoints have for them, in the order that their parameters have.
using NamedModules = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;

/// Norms that are null are left out.
struct LayerParts {
  std::shared_ptr<NormImpl> attention_norm;
  std::shared_ptr<AttentionImpl> attention;
  std::shared_ptr<NormImpl> attended_norm;  ///< of what attention returns
  std::shared_ptr<NormImpl> feed_forward_norm;
  std::shared_ptr<FeedForwardImpl> feed_forward;
  std::shared_ptr<NormImpl> fed_norm;   ///< of what the feed-forward part returns
  NamedModules names;                   ///< of these
  bool residual_is_normalised = false;  ///< see DecoderConfig; not without norms before the parts
  double residual_scale = 1;            ///< see DecoderConfig
};

/// One layer: attention and feed-forward, each on its input and added to it, with norms before or
/// after each.
class DecoderLayerImpl : public torch::nn::Module {
 public:
  explicit DecoderLayerImpl(LayerParts parts);
  /// [T, D] -> [T, D]
  [[nodiscard]] at::Tensor forward(const at::Tensor& input_TD, const Context& context);

 private:
  // A part's output, as it is added to the residual.
  [[nodiscard]] at::Tensor to_be_added(const at::Tensor& output_TD,
                                       const std::shared_ptr<NormImpl>& norm) const;

  LayerParts parts_;
};
TORCH_MODULE(DecoderLayer);

struct DecoderParts {
  std::string embedding_name;
  TokenEmbedding embedding{nullptr};
  double embedding_scale = 1;           ///< see DecoderConfig
  bool rounds_embedding_scale = false;  ///< as `embedding_scale`
  std::string position_embedding_name;
  TokenEmbedding position_embedding{nullptr};  ///< of learned positions; null for none
  std::string embedding_norm_name;
  std::shared_ptr<NormImpl> embedding_norm;  ///< null for none
  std::string layers_name;
  int64_t layers = 0;
  std::function<LayerParts(int64_t layer)> layer;  ///< called once for each, in order
  std::string final_norm_name;
  std::shared_ptr<NormImpl> final_norm;
};

/// Embedding, layers (each a unit) and final norm: what Hugging Face calls the base model.
class DecoderImpl : public torch::nn::Module {
 public:
  explicit DecoderImpl(const DecoderParts& parts);
  /// ids int64 [T] -> [T, D], before the final norm.
  [[nodiscard]] at::Tensor forward(const at::Tensor& ids_T, const Context& context);
  /// [..., D] -> [..., D]
  [[nodiscard]] at::Tensor final_norm(const at::Tensor& hidden) const;
  /// [V, D]
  [[nodiscard]] const at::Tensor& embedding_weight() const { return embedding_->weight; }

 private:
  [[nodiscard]] at::Tensor scaled(const at::Tensor& embedded) const;

  TokenEmbedding embedding_;
  double embedding_scale_;
  bool rounds_embedding_scale_;
  TokenEmbedding position_embedding_{nullptr};
  std::shared_ptr<NormImpl> embedding_norm_;
  std::vector<sherd::Unit<DecoderLayer>> layers_;
  std::shared_ptr<NormImpl> final_norm_;
};
TORCH_MODULE(Decoder);

}  // namespace llm::model
