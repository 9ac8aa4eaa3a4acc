#include "llm/model/causal_lm.h"

#include <iterator>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "llm/model/alibi.h"
#include "llm/model/rows_of_documents.h"
#include "ops/linear.h"
#include "sherd/memory.h"

namespace llm::model {

using sherd::ops::Documents;

CausalLmImpl::CausalLmImpl(const CausalLmNames& names, const DecoderConfig& config,
                           const DecoderParts& parts)
    : names_(names),
      config_(config),
      embedding_name_(names.base_model + "." + parts.embedding_name + ".weight"),
      rope_(config.rope.value_or(RopeConfig{}), config.head_size, config.context_length),
      decoder_(register_module(names.base_model, Decoder(parts))) {
  if (config.window_rope) {
    window_rope_.emplace(*config.window_rope, config.head_size, config.context_length);
  }
  if (!config.tied_embedding) {
    head_ = register_module(
        "lm_head", Projection(config.hidden_size, config.vocab_size, config.initializer_range));
  }
}

void CausalLmImpl::set_longest_text(int64_t tokens) {
  rope_.set_longest_text(tokens);
  if (window_rope_) {
    window_rope_->set_longest_text(tokens);
  }
}

Supervised Supervised::of(const at::Tensor& labels_T, const Documents& documents) {
  // The token before a label predicts it, but that of another document.
  const at::Tensor counts = labels_T.ne(kIgnoredLabel);
  counts.index_fill_(0, documents.first_tokens().to(counts.device()), false);
  const at::Tensor labelled = counts.nonzero().squeeze(1);
  return {labelled - 1, labels_T.index_select(0, labelled)};
}

at::Tensor CausalLmImpl::loss_sum(const at::Tensor& ids_T, const at::Tensor& labels_T,
                                  const Documents& documents, const at::Tensor& dropout_keys_T) {
  return loss_sum(ids_T, Supervised::of(labels_T, documents), documents, dropout_keys_T);
}

struct CausalLmImpl::HeadInputs {
  at::Tensor hidden_SD;
  at::Tensor targets_S;
  sherd::ops::LowRank update;  // of the head's adapter
};

CausalLmImpl::HeadInputs CausalLmImpl::head_inputs(const at::Tensor& ids_T,
                                                   const Supervised& supervised,
                                                   const Documents& documents,
                                                   const at::Tensor& dropout_keys_T) {
  Context context = context_of(documents, nullptr, ids_T.device());
  if (dropout_keys_T.defined()) {
    context.dropout_keys_T = sherd::to_device(dropout_keys_T, ids_T.device());
  }
  const at::Tensor hidden = hidden_states(ids_T, context);
  const at::Tensor positions = sherd::to_device(supervised.positions_S, hidden.device());
  const at::Tensor rows = hidden.index_select(0, positions);
  const at::Tensor keys = context.dropout_keys_T.defined()
                              ? context.dropout_keys_T.index_select(0, positions)
                              : at::Tensor();
  return {decoder_->final_norm(rows), sherd::to_device(supervised.targets_S, hidden.device()),
          head_update(keys)};
}

at::Tensor CausalLmImpl::loss_sum(const at::Tensor& ids_T, const Supervised& supervised,
                                  const Documents& documents, const at::Tensor& dropout_keys_T) {
  const HeadInputs head = head_inputs(ids_T, supervised, documents, dropout_keys_T);
  return sherd::ops::linear_cross_entropy(head.hidden_SD, head_weight(), head.targets_S,
                                          loss_chunk_tokens_, config_.logits, /*row_weights=*/{},
                                          head.update);
}

at::Tensor CausalLmImpl::losses_of(const HeadInputs& head) const {
  return sherd::ops::linear_cross_entropy_of_rows(head.hidden_SD, head_weight(), head.targets_S,
                                                  loss_chunk_tokens_, config_.logits, head.update);
}

ObjectiveLoss CausalLmImpl::objective_sum(const at::Tensor& ids_T, const at::Tensor& labels_T,
                                          const Documents& documents,
                                          const ObjectiveInputs& inputs) {
  const int64_t examples = inputs.objective.examples_per_sample();
  TORCH_CHECK_VALUE(documents.count() % examples == 0, "[objective_sum] got ", documents.count(),
                    " documents, but the objective takes ", examples, " per sample");
  const Supervised supervised = Supervised::of(labels_T, documents);
  const HeadInputs head = head_inputs(ids_T, supervised, documents, inputs.dropout_keys_T);
  at::Tensor weights_S, loss, figures;
  if (documents.count() > 0) {
    const c10::AutoGradMode no_gradient(false);
    const RowsOfDocuments rows(supervised.positions_S, documents, ids_T.device());
    const sherd::ObjectiveTerms terms = inputs.objective.terms(
        {rows.sums(losses_of(head)).neg_(), rows.counts_N(), inputs.reference_logps_N});
    weights_S = rows.spread(terms.coefficients_N).neg_().to(at::kFloat);
    loss = terms.loss_sum;
    figures = terms.figures_F;
  } else {  // of a rank without samples, which takes part in all collectives
    const auto wide = head.hidden_SD.options().dtype(at::kDouble);
    weights_S = at::zeros({0}, wide.dtype(at::kFloat));
    loss = at::zeros({}, wide);
    figures = at::zeros({std::ssize(inputs.objective.figure_names())}, wide);
  }
  if (!at::GradMode::is_enabled()) {
    return {loss, figures};
  }
  const at::Tensor weighted =
      sherd::ops::linear_cross_entropy(head.hidden_SD, head_weight(), head.targets_S,
                                       loss_chunk_tokens_, config_.logits, weights_S, head.update);
  // The value of the objective, with the gradient of what the coefficients weigh.
  return {weighted - weighted.detach() + loss, figures};
}

at::Tensor CausalLmImpl::logps(const at::Tensor& ids_T, const at::Tensor& labels_T,
                               const Documents& documents) {
  const c10::AutoGradMode no_gradient(false);
  const Supervised supervised = Supervised::of(labels_T, documents);
  const HeadInputs head = head_inputs(ids_T, supervised, documents, {});
  const RowsOfDocuments rows(supervised.positions_S, documents, ids_T.device());
  return rows.sums(losses_of(head)).neg_();
}

at::Tensor CausalLmImpl::logits(const at::Tensor& ids_T, const Documents& documents) {
  return scores(hidden_states(ids_T, context_of(documents, nullptr, ids_T.device())));
}

at::Tensor CausalLmImpl::decode(const at::Tensor& ids_T, const Documents& documents,
                                KvCache& cache) {
  const c10::AutoGradMode no_gradient(false);
  cache.begin(documents);
  const at::Tensor hidden = hidden_states(ids_T, context_of(documents, &cache, ids_T.device()));
  cache.advance();
  const at::Tensor ends =
      hidden.index_select(0, sherd::to_device(documents.last_tokens(), hidden.device()));
  return scores(ends);
}

at::Tensor CausalLmImpl::scores(const at::Tensor& hidden) const {
  return sherd::ops::mapped(sherd::ops::linear(decoder_->final_norm(hidden), head_weight(),
                                               std::nullopt, head_update({})),
                            config_.logits);
}

at::Tensor CausalLmImpl::hidden_states(const at::Tensor& ids_T, const Context& context) {
  TORCH_CHECK_VALUE(ids_T.size(0) == context.documents.tokens(), "[CausalLm] got ", ids_T.size(0),
                    " ids, but documents of ", context.documents.tokens(), " tokens");
  return decoder_->forward(ids_T, context);
}

Context CausalLmImpl::context_of(const Documents& documents, KvCache* cache, at::Device device) {
  Context context{.documents = documents, .attention = attention_kernel_, .cache = cache};
  if (config_.learned_positions) {
    context.positions = positions_of(documents, cache, device);
    return context;
  }
  if (!config_.rope) {
    if (!alibi_slopes_.defined() || alibi_slopes_.device() != device) {
      alibi_slopes_ = sherd::to_device(alibi_slopes(config_.heads), device);
    }
    context.alibi_slopes = alibi_slopes_;
    return context;
  }
  const bool goes_on = cache != nullptr && !cache->empty();
  const int64_t longest = goes_on ? cache->capacity_tokens() : documents.longest();
  const at::Tensor positions = positions_of(documents, cache, device);
  const auto of_tokens = [&](RopeCache& rope) {
    const auto of_table = [&](const at::Tensor& table) {
      return table.index_select(0, positions).unsqueeze(1).unsqueeze(1);
    };
    const auto tables = rope.tables(longest, device);
    return sherd::ops::RotaryTables{of_table(tables.cosine), of_table(tables.sine)};
  };
  context.rotary = of_tokens(rope_);
  if (window_rope_) {
    context.window_rotary = of_tokens(*window_rope_);
  }
  return context;
}

at::Tensor CausalLmImpl::positions_of(const Documents& documents, KvCache* cache,
                                      at::Device device) const {
  const bool goes_on = cache != nullptr && !cache->empty();
  if (config_.learned_positions) {
    const int64_t longest =
        goes_on ? cache->positions().max().item<int64_t>() + 1 : documents.longest();
    TORCH_CHECK_VALUE(longest <= config_.context_length, "[CausalLm] got a text of ", longest,
                      " tokens, but the model has learned ", config_.context_length, " positions");
  }
  return goes_on ? sherd::to_device(cache->positions(), device) : documents.positions_on(device);
}

const at::Tensor& CausalLmImpl::head_weight() const {
  return head_ ? head_->weight : decoder_->embedding_weight();
}

sherd::ops::LowRank CausalLmImpl::head_update(const at::Tensor& dropout_keys) const {
  return head_ ? low_rank_of(*head_, dropout_keys) : sherd::ops::LowRank{};
}

}  // namespace llm::model
