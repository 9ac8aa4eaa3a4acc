#pragma once
// What training, evaluation and generation need of a language model, whatever its family.

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "llm/data/label.h"
#include "llm/model/kv_cache.h"
#include "ops/linear_cross_entropy.h"

// Shapes: B batch, T tokens, D model width, V vocabulary rows.

namespace llm::model {

/// The label of a position that is not supervised.
inline constexpr int64_t kIgnoredLabel = data::kUnsupervised;

/// A decoder that predicts the next token.
///
/// Batches are padded on the right: `attention_mask_BT` (int64) is 1 on tokens and 0 after them.
/// Attention is causal, so padding changes nothing before it; a mask with padding on the left is
/// refused with c10::Error.
///
/// Of a sharded model the functions are called inside the root unit's call, on every rank alike:
///
///     auto loss = model.run([](CausalLmImpl& lm, const at::Tensor& ids, …) {
///       return lm.loss_sum(ids, labels, mask); }, ids, labels, mask);
///
/// PyTorch: `AutoModelForCausalLM`.
class CausalLmImpl : public torch::nn::Module {
 public:
  /// The sum of −log p(labels[t + 1] | tokens up to t) over positions whose label is not
  /// kIgnoredLabel, an fp32 scalar with a gradient; 0 where nothing is supervised.
  /// Shapes: all int64 [B, T]; labels as `input_ids`, not shifted.
  /// Logits exist for supervised positions only, loss_chunk_tokens of them at a time.
  [[nodiscard]] at::Tensor loss_sum(const at::Tensor& input_ids_BT, const at::Tensor& labels_BT,
                                    const at::Tensor& attention_mask_BT);

  /// How many rows of logits loss_sum() holds at a time: V elements each. Of more rows than that,
  /// gradients are computed in forward and held in fp32 until backward.
  void set_loss_chunk_tokens(int64_t tokens) { loss_chunk_tokens_ = tokens; }

  /// Scores of the next token at every position -> [B, T, V], in the parameters' dtype.
  [[nodiscard]] at::Tensor logits(const at::Tensor& input_ids_BT,
                                  const at::Tensor& attention_mask_BT);

  /// Reads tokens after those in `cache` and answers the scores that follow each row's last one
  /// -> [B, V]. First call: the prompts [B, T]; then one token a row [B, 1]. A row whose mask is 0
  /// stands still: it keeps finished rows in the batch. No gradient.
  [[nodiscard]] at::Tensor decode(const at::Tensor& input_ids_BT,
                                  const at::Tensor& attention_mask_BT, KvCache& cache);

  /// The longest text the model was made for.
  [[nodiscard]] virtual int64_t context_length() const = 0;
  /// Rows of the head: ids are below this.
  [[nodiscard]] virtual int64_t vocab_rows() const = 0;
  /// Model width D.
  [[nodiscard]] virtual int64_t hidden_size() const = 0;
  /// How much attention there is, for accounts of operations and memory.
  struct AttentionShape {
    int64_t layers = 0;
    int64_t heads = 0;  ///< of queries
    int64_t head_size = 0;
  };
  [[nodiscard]] virtual AttentionShape attention_shape() const = 0;
  /// Hugging Face's `model_type`.
  [[nodiscard]] virtual std::string family() const = 0;
  /// The parameter that holds the token embedding, which is the head's too where the head is tied.
  /// Its first part is what Hugging Face calls the base model, with the dot: "transformer." in
  /// "transformer.word_embeddings.weight".
  [[nodiscard]] virtual std::string embedding_name() const = 0;

 protected:
  /// The last layer's output, before the final norm -> [B, T, D]. `cache` is null unless decoding.
  [[nodiscard]] virtual at::Tensor hidden_states(const at::Tensor& input_ids_BT,
                                                 KvCache* cache) = 0;
  /// [..., D] -> [..., D]
  [[nodiscard]] virtual at::Tensor final_norm(const at::Tensor& hidden) = 0;
  /// [V, D]
  [[nodiscard]] virtual const at::Tensor& head_weight() const = 0;

 private:
  int64_t loss_chunk_tokens_ = sherd::ops::kLossChunkTokens;
};

/// A holder of any family's module.
TORCH_MODULE(CausalLm);

}  // namespace llm::model
