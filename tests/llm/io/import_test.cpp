#include "llm/io/import.h"

#include <filesystem>
#include <map>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/io/hf_config.h"
#include "sherd/fully_shard.h"
#include "sherd/safetensors.h"
#include "tests/llm/io/model_folders.h"
#include "tests/llm/io/published_bloom.h"

namespace llm::io {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";

model::DecoderConfig small(bool tied) {
  return {.hidden_size = 6,
          .feed_forward_size = 5,
          .layers = 1,
          .heads = 2,
          .key_heads = 1,
          .head_size = 2,
          .vocab_size = 7,
          .context_length = 64,
          .norm_epsilon = 1e-6,
          .tied_embedding = tied,
          .rope = model::RopeConfig{}};
}

model::CausalLm build(const model::DecoderConfig& config) {
  return families::find_family("llama")->build(config);
}

// A folder with the weights of a small Llama, to which a test does something first.
class ImportTest : public testing::Test {
 protected:
  using Weights = std::map<std::string, at::Tensor>;

  Weights weights_of(bool tied) {
    Weights weights;
    for (const auto& parameter : build(small(tied))->named_parameters()) {
      weights[parameter.key()] = parameter.value().detach();
    }
    return weights;
  }
  sherd::SafetensorsFolder folder_with(const Weights& weights) {
    std::vector<sherd::SafetensorsSpec> specs;
    for (const auto& [name, tensor] : weights) {
      specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    }
    sherd::SafetensorsWriter writer(file(), specs);
    for (const auto& [name, tensor] : weights) {
      writer.write(name, tensor.const_data_ptr(), tensor.nbytes());
    }
    writer.finish();
    return sherd::SafetensorsFolder(folder_.path());
  }
  void refuses(bool tied, const Weights& weights, const std::string& message) {
    model::CausalLm llama = build(small(tied));
    expect_error([&] { (void)match_weights(*llama, folder_with(weights)); },
                 sherd::ExitCode::BadData, file() + ": tensor " + message);
  }
  // As `folder_with`, in a shard; the index names all tensors but `unnamed`.
  sherd::SafetensorsFolder shard_with(const Weights& weights, const std::string& unnamed) {
    (void)folder_with(weights);
    std::filesystem::rename(file(), folder_ / "one.safetensors");
    nlohmann::json index;
    for (const auto& [name, tensor] : weights) {
      if (name != unnamed) {
        index["weight_map"][name] = "one.safetensors";
      }
    }
    write_all(folder_ / "model.safetensors.index.json", index.dump());
    return sherd::SafetensorsFolder(folder_.path());
  }
  [[nodiscard]] std::string file() const { return folder_ / "model.safetensors"; }

 private:
  TemporaryFolder folder_;
};

TEST_F(ImportTest, LoadsEveryParameterFromAnyFloatDtype) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    Weights weights = weights_of(false);
    for (auto& [name, tensor] : weights) {
      tensor = tensor.to(dtype);
    }
    model::CausalLm llama = build(small(false));
    load_weights(*llama, folder_with(weights));
    for (const auto& parameter : llama->named_parameters()) {
      EXPECT_TRUE(parameter.value().equal(weights.at(parameter.key()).to(at::kFloat)));
    }
  }
}

TEST_F(ImportTest, MatchesAModelOnMeta) {
  const auto llama = sherd::on_meta([] { return build(small(true)); });
  EXPECT_EQ(match_weights(*llama, folder_with(weights_of(true))).size(), 11);
}

TEST_F(ImportTest, NamesAMissingTensor) {
  Weights weights = weights_of(false);
  weights.erase("model.norm.weight");
  refuses(false, weights, "model.norm.weight is missing; the model needs it with shape [6]");
}

TEST_F(ImportTest, NamesATensorOfAnotherShape) {
  Weights weights = weights_of(false);
  weights[kEmbedding] = at::ones({8, 6}, at::kFloat);
  refuses(false, weights, std::string(kEmbedding) + " has shape [8, 6], expected [7, 6]");
}

TEST_F(ImportTest, NamesATensorThatIsNotFloats) {
  Weights weights = weights_of(false);
  weights[kEmbedding] = at::ones({7, 6}, at::kLong);
  refuses(false, weights, std::string(kEmbedding) + " is stored as I64, expected floats");
}

TEST_F(ImportTest, NamesATensorThatIsLeftOver) {
  Weights weights = weights_of(false);
  weights["model.layers.1.mlp.up_proj.weight"] = at::ones({5, 6}, at::kFloat);
  refuses(false, weights, "model.layers.1.mlp.up_proj.weight is not part of the model");
}

TEST_F(ImportTest, NamesATensorThatTheIndexLacks) {
  const std::string extra = "model.layers.0.self_attn.q_norm.weight";
  Weights weights = weights_of(true);
  weights[extra] = at::ones({6}, at::kFloat);
  const model::CausalLm llama = build(small(true));
  expect_error([&] { (void)match_weights(*llama, shard_with(weights, extra)); },
               sherd::ExitCode::BadData,
               {"one.safetensors: tensor " + extra + " is not part of the model"});
}

TEST_F(ImportTest, AllowsWhatCanBeDerivedWhereTheIndexLacksIt) {
  const model::CausalLm llama = build(small(true));
  for (const std::string extra :
       {"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"}) {
    Weights weights = weights_of(true);
    weights[extra] = weights.at(kEmbedding).clone();
    EXPECT_EQ(match_weights(*llama, shard_with(weights, extra)).size(), 11);
  }
}

TEST_F(ImportTest, AllowsWhatCanBeDerived) {
  Weights weights = weights_of(true);
  weights["lm_head.weight"] = weights.at(kEmbedding).clone();
  weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({1}, at::kFloat);
  model::CausalLm llama = build(small(true));
  EXPECT_EQ(match_weights(*llama, folder_with(weights)).size(), 11);
}

TEST_F(ImportTest, RefusesAHeadThatDiffersFromTheEmbeddingItIsTiedTo) {
  Weights weights = weights_of(true);
  weights["lm_head.weight"] = weights.at(kEmbedding).clone();
  weights["lm_head.weight"][6][5] += 1;
  refuses(true, weights, std::string("lm_head.weight differs from ") + kEmbedding);
}

// Published BLOOM checkpoints: the base model's name left out, 16-bit weights.
TEST_F(ImportTest, ReadsCheckpointsOfTheBaseModelAlone) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const TemporaryFolder folder;
    make_published_bloom(folder.path(), dtype);
    const sherd::SafetensorsFolder weights(folder.path());
    auto model = build_model(read_model_folder_config(folder.path()));
    const auto name = names_in_file(match_weights(*model, weights));
    EXPECT_EQ(name("transformer.h.1.mlp.dense_4h_to_h.bias"), "h.1.mlp.dense_4h_to_h.bias");
    load_weights(*model, weights);
    const sherd::SafetensorsFile source(kData + "tiny-bloom-hf/model.safetensors");
    for (const auto& parameter : model->named_parameters()) {
      const at::Tensor expected = source.read(*source.find(parameter.key())).to(dtype);
      EXPECT_TRUE(parameter.value().equal(expected.to(at::kFloat))) << parameter.key();
    }
  }
}

TEST_F(ImportTest, TheBaseModelsNameIsLeftOutEverywhereOrNowhere) {
  const auto without_prefix = [&](bool tied) {
    Weights weights;
    for (const auto& [name, tensor] : weights_of(tied)) {
      weights[name.starts_with("model.") ? name.substr(6) : name] = tensor;
    }
    return weights;
  };
  model::CausalLm untied = build(small(false));
  EXPECT_EQ(match_weights(*untied, folder_with(without_prefix(false))).size(), 12);
  Weights weights = without_prefix(true);
  weights["lm_head.weight"] = weights.at("embed_tokens.weight").clone();
  model::CausalLm tied = build(small(true));
  EXPECT_EQ(match_weights(*tied, folder_with(weights)).size(), 11);
  weights["lm_head.weight"][6][5] += 1;
  refuses(true, weights, "lm_head.weight differs from embed_tokens.weight");
  weights.erase("lm_head.weight");
  weights.erase("norm.weight");
  weights["model.norm.weight"] = at::ones({6}, at::kFloat);
  refuses(true, weights, "norm.weight is missing");
}

TEST_F(ImportTest, TellsWhetherAFolderHasWeights) {
  const TemporaryFolder empty;
  EXPECT_FALSE(has_weights(empty.path()));
  EXPECT_FALSE(has_weights("/nowhere"));
  EXPECT_TRUE(has_weights(kData + "stories260k-hf"));  // one file
  EXPECT_TRUE(has_weights(kData + "tiny-llama3-hf"));  // shards
}

}  // namespace
}  // namespace llm::io
