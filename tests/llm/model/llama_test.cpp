// The Llama family: names, registration.

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "tests/llm/model/parameter_names.h"
#include "tests/llm/model/small_llama.h"

namespace llm::model {
namespace {

TEST(Llama, ParametersAreNamedAsInHuggingFaceCheckpoints) {
  DecoderConfig config = small_llama_config();
  config.layers = 1;
  const auto names = names_of(make_llama(config));
  EXPECT_THAT(
      names,
      testing::UnorderedElementsAre(
          "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
          "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
          "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.gate_proj.weight",
          "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
          "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
          "model.norm.weight", "lm_head.weight"));
}

TEST(Llama, ATiedHeadIsNoParameterOfItsOwn) {
  const auto names = names_of(make_llama(small_llama_config(/*tied=*/true)));
  EXPECT_THAT(names, testing::Not(testing::Contains("lm_head.weight")));
}

TEST(Llama, WeightsThatOneProductCanServeAreRegisteredSideBySide) {
  const auto names = names_of(make_llama(small_llama_config()));
  const auto place = [&](const std::string& part) {
    return std::find(names.begin(), names.end(), "model.layers.1." + part + ".weight") -
           names.begin();
  };
  EXPECT_EQ(place("self_attn.k_proj"), place("self_attn.q_proj") + 1);
  EXPECT_EQ(place("self_attn.v_proj"), place("self_attn.q_proj") + 2);
  EXPECT_EQ(place("mlp.up_proj"), place("mlp.gate_proj") + 1);
}

TEST(Llama, OnMetaItHasShapesWithoutMemory) {
  const CausalLm model = sherd::on_meta([] { return make_llama(small_llama_config()); });
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().is_meta()) << parameter.key();
  }
  EXPECT_EQ(model->vocab_rows(), 37);
  EXPECT_EQ(model->context_length(), 64);
  EXPECT_EQ(model->family(), "llama");
}

}  // namespace
}  // namespace llm::model
