// Which parameters optim.weight_decay shrinks.

#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/setup/options_of_config.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/llm/model/small_bloom.h"
#include "tests/llm/model/small_llama.h"

namespace llm::train {
namespace {

using model::CausalLm;
using Names = std::set<std::string>;

at::Tensor loss_of_batch(model::CausalLmImpl& lm, const at::Tensor& ids, const at::Tensor& labels,
                         const sherd::ops::Documents& documents) {
  return lm.loss_sum(ids, labels, documents);
}

// All parameters after one step.
std::map<std::string, at::Tensor> after_a_step(const CausalLm& lm,
                                               const config::OptimSection& optim) {
  auto model = sherd::fully_shard(lm, sherd::Mesh::shard(sherd::World::alone()));
  sherd::AdamW optimizer(model, setup::adamw_options(optim), setup::adamw_groups(optim, *lm));
  const auto batch = model::make_batch({17, 5, 11}, model::kVocabulary);
  model.run(loss_of_batch, batch.ids_T, batch.labels_T, batch.documents).backward();
  optimizer.step();
  std::map<std::string, at::Tensor> values;
  for (const auto& shard : model.parameter_shards()) {
    values[shard.name] = shard.value.clone();
  }
  return values;
}

// Those that a step with decay leaves elsewhere than one without.
template <class Build>
Names decayed(const Build& build, bool on_norms_and_biases) {
  config::OptimSection optim;
  optim.lr = 0.1;
  optim.weight_decay_on_norms_and_biases = on_norms_and_biases;
  const auto without = after_a_step(build(), optim);
  optim.weight_decay = 0.5;
  Names names;
  for (const auto& [name, value] : after_a_step(build(), optim)) {
    if (!value.equal(without.at(name))) {
      names.insert(name);
    }
  }
  return names;
}

Names in_every_layer(Names names, const std::string& layers, const Names& parameters) {
  for (int layer = 0; layer < 3; ++layer) {
    for (const std::string& parameter : parameters) {
      names.insert(layers + std::to_string(layer) + "." + parameter);
    }
  }
  return names;
}

TEST(WeightDecay, OfLlamaIsOfMatricesAndEmbeddings) {
  const auto build = [] { return model::make_llama(model::small_llama_config()); };
  const Names matrices =
      in_every_layer({"model.embed_tokens.weight", "lm_head.weight"}, "model.layers.",
                     {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                      "self_attn.v_proj.weight", "self_attn.o_proj.weight", "mlp.gate_proj.weight",
                      "mlp.up_proj.weight", "mlp.down_proj.weight"});
  EXPECT_EQ(decayed(build, false), matrices);
  Names all = matrices;
  all.insert("model.norm.weight");
  EXPECT_EQ(decayed(build, true),
            in_every_layer(all, "model.layers.",
                           {"input_layernorm.weight", "post_attention_layernorm.weight"}));
}

TEST(WeightDecay, OfBloomIsOfMatricesAndEmbeddings) {
  const auto build = [] { return model::make_bloom(model::small_bloom_config()); };
  const Names matrices =
      in_every_layer({"transformer.word_embeddings.weight"}, "transformer.h.",
                     {"self_attention.query_key_value.weight", "self_attention.dense.weight",
                      "mlp.dense_h_to_4h.weight", "mlp.dense_4h_to_h.weight"});
  EXPECT_EQ(decayed(build, false), matrices);
  Names all = matrices;
  all.insert({"transformer.word_embeddings_layernorm.weight",
              "transformer.word_embeddings_layernorm.bias", "transformer.ln_f.weight",
              "transformer.ln_f.bias"});
  EXPECT_EQ(decayed(build, true),
            in_every_layer(all, "transformer.h.",
                           {"input_layernorm.weight", "input_layernorm.bias",
                            "post_attention_layernorm.weight", "post_attention_layernorm.bias",
                            "self_attention.query_key_value.bias", "self_attention.dense.bias",
                            "mlp.dense_h_to_4h.bias", "mlp.dense_4h_to_h.bias"}));
}

TEST(WeightDecay, OnNormsAndBiasesIsReadOfCheckpointsThatLackTheKey) {
  EXPECT_FALSE(config::RunConfig().optim.weight_decay_on_norms_and_biases);
  EXPECT_TRUE(
      config::from_toml("[optim]\nweight_decay = 0.1\n").optim.weight_decay_on_norms_and_biases);
  EXPECT_FALSE(config::from_toml("[optim]\nweight_decay_on_norms_and_biases = false\n")
                   .optim.weight_decay_on_norms_and_biases);
}

}  // namespace
}  // namespace llm::train
