#pragma once
// A language model: a decoder and a head, and what training, evaluation and generation ask of them.

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "llm/inputs/label.h"
#include "llm/model/decoder.h"
#include "llm/model/decoder_config.h"
#include "llm/model/kv_cache.h"
#include "llm/model/rope.h"
#include "ops/attention_kernel.h"
#include "ops/documents.h"
#include "ops/linear_cross_entropy.h"
#include "sherd/custom.h"

// Shapes: T tokens of all documents of a batch, N documents, S supervised positions, D model width,
// V vocabulary rows.

namespace llm::model {

/// The label of a position that is not supervised.
inline constexpr int64_t kIgnoredLabel = inputs::kUnsupervised;

/// What a family calls the parts beside the decoder's own.
struct CausalLmNames {
  std::string model_type;  ///< Hugging Face's
  std::string base_model;  ///< the decoder's, without a dot
};

/// Where a next token is to be predicted, and which.
struct Supervised {
  at::Tensor positions_S;  ///< int64 [S] among the tokens of a batch
  at::Tensor targets_S;    ///< int64 [S]
  /// From labels as CausalLmImpl::loss_sum() takes them. Where these are the host's, so is it.
  [[nodiscard]] static Supervised of(const at::Tensor& labels_T,
                                     const sherd::ops::Documents& documents);
};

/// The documents of a batch as an objective takes them: N of them.
struct ObjectiveInputs {
  const sherd::Objective& objective;
  at::Tensor reference_logps_N = {};  ///< fp64 [N]; undefined unless needs_reference()
  at::Tensor dropout_keys_T = {};     ///< as loss_sum() takes them
};

/// Loss and figures of an objective for a batch.
struct ObjectiveLoss {
  at::Tensor loss_sum;   ///< fp64 []: differentiable
  at::Tensor figures_F;  ///< fp64 [F]: sherd::ObjectiveTerms::figures_F
};

/// A decoder that predicts the next token.
///
/// A batch is documents side by side on one axis of tokens, without padding. Attention is causal
/// and stays within a document, positions begin anew in each: a document's results do not depend on
/// those beside it.
///
/// Of a sharded model the functions are called inside the root unit's call, on every rank alike:
///
///     auto loss = model.run([&labels](CausalLmImpl& lm, const at::Tensor& ids, …) {
///       return lm.loss_sum(ids, labels, documents); }, ids, documents);
///
/// PyTorch: `AutoModelForCausalLM`.
class CausalLmImpl : public torch::nn::Module {
 public:
  /// With random weights; under sherd::on_meta() with none.
  CausalLmImpl(const CausalLmNames& names, const DecoderConfig& config, const DecoderParts& parts);

  /// The sum of −log p(labels[t + 1] | tokens of the document up to t) over positions whose label
  /// is not kIgnoredLabel, an fp32 scalar with a gradient; 0 where nothing is supervised.
  /// Shapes: int64 [T]; labels as `ids`, not shifted: that of a document's first token is not
  /// looked at. Labels in the host's memory spare a GPU a wait: how many there are, the host has to
  /// know. Logits exist for supervised positions only, loss_chunk_tokens of them at a time.
  /// `dropout_keys_T`: as Context has them, on any device; without them nothing is dropped.
  [[nodiscard]] at::Tensor loss_sum(const at::Tensor& ids_T, const at::Tensor& labels_T,
                                    const sherd::ops::Documents& documents,
                                    const at::Tensor& dropout_keys_T = {});

  /// The same of positions that the caller has found, on any device: for a sharded model whose
  /// micro-batches are graphs (sherd::MicroBatchGraphs) on the model's.
  [[nodiscard]] at::Tensor loss_sum(const at::Tensor& ids_T, const Supervised& supervised,
                                    const sherd::ops::Documents& documents,
                                    const at::Tensor& dropout_keys_T = {});

  /// The loss of an objective over these documents, and how its gradient flows: through the head a
  /// second time, with the objective's coefficients as weights of rows. Labels as loss_sum() takes
  /// them, in the host's memory. Memory: that of loss_sum().
  [[nodiscard]] ObjectiveLoss objective_sum(const at::Tensor& ids_T, const at::Tensor& labels_T,
                                            const sherd::ops::Documents& documents,
                                            const ObjectiveInputs& inputs);

  /// The sum of log p over the supervised tokens of each document -> fp64 [N], without gradients.
  /// Labels as objective_sum().
  [[nodiscard]] at::Tensor logps(const at::Tensor& ids_T, const at::Tensor& labels_T,
                                 const sherd::ops::Documents& documents);

  /// How many rows of logits loss_sum() holds at a time: V elements each. Of more rows than that,
  /// gradients are computed in forward and held in fp32 until backward.
  void set_loss_chunk_tokens(int64_t tokens) { loss_chunk_tokens_ = tokens; }

  /// The longest text of a run, in tokens: it decides which factors of longrope count, once for the
  /// run, so that no text's loss depends on the others. Unset: the model's context. Before the
  /// first call.
  void set_longest_text(int64_t tokens);

  /// What computes attention on a GPU, in the next calls.
  void set_attention_kernel(sherd::ops::AttentionKernel kernel) { attention_kernel_ = kernel; }

  /// Scores of the next token at every position -> [T, V], in the parameters' dtype.
  [[nodiscard]] at::Tensor logits(const at::Tensor& ids_T, const sherd::ops::Documents& documents);

  /// Reads tokens after those in `cache` and answers the scores that follow each row's last one
  /// -> [rows, V]. First call: the prompts, a document each; then one token a row of the cache. No
  /// gradient.
  [[nodiscard]] at::Tensor decode(const at::Tensor& ids_T, const sherd::ops::Documents& documents,
                                  KvCache& cache);

  [[nodiscard]] const DecoderConfig& config() const noexcept { return config_; }
  /// The longest text the model was made for.
  [[nodiscard]] int64_t context_length() const noexcept { return config_.context_length; }
  /// Rows of the head: ids are below this.
  [[nodiscard]] int64_t vocab_rows() const noexcept { return config_.vocab_size; }
  /// Hugging Face's `model_type`.
  [[nodiscard]] const std::string& family() const noexcept { return names_.model_type; }
  /// The parameter that holds the token embedding, which is the head's too where the head is tied.
  /// Its first part is what Hugging Face calls the base model, with the dot: "transformer." in
  /// "transformer.word_embeddings.weight".
  [[nodiscard]] const std::string& embedding_name() const noexcept { return embedding_name_; }

 private:
  // The last layer's output, before the final norm -> [T, D].
  [[nodiscard]] at::Tensor hidden_states(const at::Tensor& ids_T, const Context& context);
  // `cache` is null unless decoding.
  [[nodiscard]] Context context_of(const sherd::ops::Documents& documents, KvCache* cache,
                                   at::Device device);
  [[nodiscard]] at::Tensor positions_of(const sherd::ops::Documents& documents, KvCache* cache,
                                        at::Device device) const;
  // Inputs of the head at supervised positions -> [S, D], and the labels there -> [S].
  struct HeadInputs;
  [[nodiscard]] HeadInputs head_inputs(const at::Tensor& ids_T, const Supervised& supervised,
                                       const sherd::ops::Documents& documents,
                                       const at::Tensor& dropout_keys_T);
  // −log p of each target, without gradients -> [S].
  [[nodiscard]] at::Tensor losses_of(const HeadInputs& head) const;
  // The head's products, mapped.
  [[nodiscard]] at::Tensor scores(const at::Tensor& hidden) const;
  [[nodiscard]] const at::Tensor& head_weight() const;
  [[nodiscard]] sherd::ops::LowRank head_update(const at::Tensor& dropout_keys) const;

  CausalLmNames names_;
  DecoderConfig config_;
  std::string embedding_name_;
  RopeCache rope_;
  std::optional<RopeCache> window_rope_;  // of layers with a window, where they have their own
  at::Tensor alibi_slopes_;               // on the device; undefined: not needed yet
  int64_t loss_chunk_tokens_ = sherd::ops::kLossChunkTokens;
  sherd::ops::AttentionKernel attention_kernel_ = sherd::ops::AttentionKernel::Auto;
  Decoder decoder_;
  Projection head_{nullptr};  // none where the embedding serves as the head
};
TORCH_MODULE(CausalLm);

}  // namespace llm::model
