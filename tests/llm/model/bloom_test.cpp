// The BLOOM family against plain formulas.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/model/alibi.h"
#include "sherd/fully_shard.h"
#include "tests/llm/model/parameter_names.h"
#include "tests/llm/model/small_bloom.h"

namespace llm::model {
namespace {

TEST(Bloom, ParametersAreNamedAsTransformersSavesThem) {
  DecoderConfig config = small_bloom_config();
  config.layers = 1;
  const auto both = [](const std::string& module) {
    return std::vector<std::string>{"transformer." + module + ".weight",
                                    "transformer." + module + ".bias"};
  };
  std::vector<std::string> expected = {"transformer.word_embeddings.weight"};
  for (const char* module :
       {"word_embeddings_layernorm", "h.0.input_layernorm", "h.0.self_attention.query_key_value",
        "h.0.self_attention.dense", "h.0.post_attention_layernorm", "h.0.mlp.dense_h_to_4h",
        "h.0.mlp.dense_4h_to_h", "ln_f"}) {
    const auto names = both(module);
    expected.insert(expected.end(), names.begin(), names.end());
  }
  const CausalLm bloom = make_bloom(config);
  EXPECT_EQ(names_of(bloom), expected);
  EXPECT_EQ(bloom->embedding_name(), expected.front());
}

TEST(Bloom, AnUntiedHeadIsAParameterOfItsOwn) {
  EXPECT_THAT(names_of(make_bloom(small_bloom_config())),
              testing::Not(testing::Contains("lm_head.weight")));
  EXPECT_THAT(names_of(make_bloom(small_bloom_config(/*tied=*/false))),
              testing::Contains("lm_head.weight"));
}

TEST(Bloom, OnMetaItHasShapesWithoutMemory) {
  const CausalLm model = sherd::on_meta([] { return make_bloom(small_bloom_config()); });
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().is_meta()) << parameter.key();
  }
  EXPECT_EQ(model->vocab_rows(), 37);
  EXPECT_EQ(model->context_length(), 64);
  EXPECT_EQ(model->family(), "bloom");
}

// BLOOM written down once more from plain ATen calls in fp64, from the model's own parameters.
class PlainBloom {
 public:
  PlainBloom(const DecoderConfig& config, const CausalLm& model) : config_(config) {
    for (const auto& parameter : model->named_parameters()) {
      parameters_[parameter.key()] = parameter.value().detach().to(at::kDouble);
    }
  }
  at::Tensor logits(const at::Tensor& ids) const {
    const at::Tensor& table = of("word_embeddings.weight");
    at::Tensor hidden =
        norm(table.index_select(0, ids.flatten()).view({ids.size(0), ids.size(1), -1}),
             "word_embeddings_layernorm");
    for (int64_t i = 0; i < config_.layers; ++i) {
      hidden = block(hidden, "h." + std::to_string(i) + ".");
    }
    const auto head = parameters_.find("lm_head.weight");
    return at::linear(norm(hidden, "ln_f"), head == parameters_.end() ? table : head->second);
  }

 private:
  [[nodiscard]] const at::Tensor& of(const std::string& name) const {
    return parameters_.at("transformer." + name);
  }
  [[nodiscard]] at::Tensor norm(const at::Tensor& input, const std::string& name) const {
    return at::layer_norm(input, {config_.hidden_size}, of(name + ".weight"), of(name + ".bias"),
                          config_.norm_epsilon);
  }
  [[nodiscard]] at::Tensor project(const at::Tensor& input, const std::string& name) const {
    return at::linear(input, of(name + ".weight"), of(name + ".bias"));
  }
  [[nodiscard]] at::Tensor block(const at::Tensor& input, const std::string& prefix) const {
    const bool post = config_.residual_is_normalised;
    const at::Tensor first = norm(input, prefix + "input_layernorm");
    const at::Tensor attended = attend(first, prefix) + (post ? first : input);
    const at::Tensor second = norm(attended, prefix + "post_attention_layernorm");
    const at::Tensor wide = at::gelu(project(second, prefix + "mlp.dense_h_to_4h"), "tanh");
    return project(wide, prefix + "mlp.dense_4h_to_h") + (post ? second : attended);
  }
  // One head at a time.
  [[nodiscard]] at::Tensor attend(const at::Tensor& input, const std::string& prefix) const {
    const int64_t size = config_.hidden_size / config_.heads, tokens = input.size(1);
    const at::Tensor fused = project(input, prefix + "self_attention.query_key_value");
    const at::Tensor slopes = alibi_slopes(config_.heads);
    const at::Tensor future = at::ones({tokens, tokens}, at::kBool).triu(1);
    std::vector<at::Tensor> heads;
    for (int64_t n = 0; n < config_.heads; ++n) {
      const auto part = [&](int64_t which) {
        return fused.narrow(2, (3 * n + which) * size, size);
      };
      const at::Tensor bias = at::arange(tokens, at::kDouble) * slopes[n].item<double>();
      const at::Tensor scores =
          at::matmul(part(0), part(1).transpose(1, 2)) / std::sqrt(static_cast<double>(size)) +
          bias;
      heads.push_back(at::matmul(at::softmax(scores.masked_fill(future, -1e300), -1), part(2)));
    }
    return project(at::cat(heads, 2), prefix + "self_attention.dense");
  }

  DecoderConfig config_;
  std::map<std::string, at::Tensor> parameters_;
};

TEST(Bloom, ComputesWhatThePlainFormulasDo) {
  for (const bool post_layernorm : {false, true}) {
    for (const bool tied : {false, true}) {
      DecoderConfig config = small_bloom_config(tied);
      config.residual_is_normalised = post_layernorm;
      CausalLm model = make_bloom(config);
      const auto batch = make_batch({17, 17}, config.vocab_size);
      const at::Tensor expected = PlainBloom(config, model).logits(batch.ids_T.view({2, 17}));
      const at::Tensor found =
          model->logits(batch.ids_T, batch.documents).detach().view_as(expected);
      EXPECT_LE((found - expected).abs().max().item<double>(),
                1e-5 * expected.abs().max().item<double>())
          << "post_layernorm " << post_layernorm << ", tied " << tied;
    }
  }
}

TEST(Bloom, DocumentsDoNotChangeEachOther) {
  CausalLm model = make_bloom(small_bloom_config());
  const auto batch = make_batch({17, 5, 9}, 37);
  const at::Tensor together = model->logits(batch.ids_T, batch.documents);
  const auto alone = document_of(batch, 1);
  EXPECT_LE((model->logits(alone.ids_T, alone.documents) - together.slice(0, 17, 22))
                .abs()
                .max()
                .item<double>(),
            1e-5);
}

}  // namespace
}  // namespace llm::model
