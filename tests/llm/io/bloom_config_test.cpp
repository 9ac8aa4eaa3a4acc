// The fields of a BLOOM's config.json.

#include <string>

#include "llm/io/hf_config.h"
#include "tests/llm/io/published_bloom.h"

namespace llm::io {
namespace {

using nlohmann::json;

const model::DecoderConfig& bloom_of(const HfConfig& config) {
  return config.shape;
}

// A config.json as transformers saves it or as published, with some fields changed; a field that is
// set to null counts as missing.
class BloomConfigTest : public testing::Test {
 protected:
  model::DecoderConfig read(json config, const json& changes) {
    config.update(changes);
    write_all(path(), config.dump());
    return bloom_of(read_hf_config(path()));
  }
  model::DecoderConfig read(const json& changes) {
    return read(json::parse(read_all(kData + "tiny-bloom-hf/config.json")), changes);
  }
  void refuses(const json& changes, const std::string& message) {
    expect_error([&] { (void)read(changes); }, sherd::ExitCode::BadData, path() + ": " + message);
  }
  [[nodiscard]] std::string path() const { return folder_ / "config.json"; }

 private:
  TemporaryFolder folder_;
};

TEST_F(BloomConfigTest, BothSpellingsMeanTheSame) {
  for (const auto& config :
       {read(json::object()), read(published_bloom_config(), json::object())}) {
    EXPECT_EQ(config.hidden_size, 64);
    EXPECT_EQ(config.layers, 2);
    EXPECT_EQ(config.heads, 4);
    EXPECT_EQ(config.vocab_size, 512);
    EXPECT_EQ(config.norm_epsilon, 1e-5);
    EXPECT_TRUE(config.tied_embedding);
    EXPECT_FALSE(config.residual_is_normalised);
    EXPECT_EQ(config.context_length, 2'048);
  }
  EXPECT_EQ(read({{"num_hidden_layers", 3}, {"n_layer", nullptr}}).layers, 3);
  EXPECT_EQ(read({{"num_hidden_layers", 2}}).layers, 2);
}

TEST_F(BloomConfigTest, TellsFamilyDtypeAndInitializerRange) {
  const HfConfig config = read_hf_config(kData + "tiny-bloom-hf/config.json");
  EXPECT_EQ(std::string(config.family->model_type), "bloom");
  EXPECT_EQ(config.dtype, at::kFloat);
  EXPECT_EQ(config.shape.initializer_range, 0.2);
}

TEST_F(BloomConfigTest, ReadsWhatChangesTheComputation) {
  const model::DecoderConfig config = read({{"apply_residual_connection_post_layernorm", true},
                                            {"tie_word_embeddings", false},
                                            {"seq_length", 77},
                                            {"layer_norm_epsilon", 1e-3},
                                            {"n_head", 16}});
  EXPECT_TRUE(config.residual_is_normalised);
  EXPECT_FALSE(config.tied_embedding);
  EXPECT_EQ(config.context_length, 77);
  EXPECT_EQ(config.norm_epsilon, 1e-3);
  EXPECT_EQ(config.heads, 16);
}

TEST_F(BloomConfigTest, AcceptsWhatChangesNothing) {
  (void)read({{"n_inner", 256},
              {"pretraining_tp", 4},
              {"slow_but_exact", true},
              {"offset_alibi", 100},
              {"use_cache", false},
              {"hidden_dropout", 0},
              {"unheard_of_flag", false}});
}

TEST_F(BloomConfigTest, RefusesAFieldThatIsNotKnown) {
  refuses({{"some_name", "x"}}, "\"some_name\" \"x\" is unknown, and may change");
  refuses({{"rope_theta", 7}}, "\"rope_theta\" 7 is unknown, and may change");  // Llama's
}

TEST_F(BloomConfigTest, RefusesByNameWhatIsNotImplemented) {
  refuses({{"hidden_dropout", 1.5}},
          "\"hidden_dropout\" must be a number from 0 to below 1, found 1.5");
  refuses({{"attention_dropout", "no"}},
          "\"attention_dropout\" must be a number from 0 to below 1, found \"no\"");
  refuses({{"n_inner", 100}},
          "\"n_inner\" 100 is not implemented, only null or 256, four times the width");
  refuses({{"architectures", {"BloomForTokenClassification"}}},
          "\"architectures\" [\"BloomForTokenClassification\"] is not implemented, only "
          "[\"BloomForCausalLM\"]");
  refuses({{"architectures", {"BloomModel"}}, {"tie_word_embeddings", false}},
          "\"architectures\" [\"BloomModel\"] is not implemented");
  refuses({{"quantization_config", {{"bits", 8}}}}, "\"quantization_config\" {\"bits\":8} is not");
}

TEST_F(BloomConfigTest, RefusesValuesThatCannotBeRight) {
  for (const char* field : {"hidden_size", "n_head", "n_layer", "vocab_size"}) {
    refuses({{field, nullptr}}, '"' + std::string(field) + "\" is missing");
  }
  refuses({{"n_embed", 128}}, "\"n_embed\" 128 contradicts \"hidden_size\" 64");
  refuses({{"num_attention_heads", 8}}, "\"num_attention_heads\" 8 contradicts \"n_head\" 4");
  refuses({{"num_hidden_layers", 8}}, "\"num_hidden_layers\" 8 contradicts \"n_layer\" 2");
  refuses({{"n_head", 7}}, "\"n_head\" 7 does not divide \"hidden_size\" 64");
  refuses({{"hidden_size", 2'000'000'000}},
          "\"hidden_size\" must be a whole number from 1 to 536870911, found 2000000000");
  refuses({{"layer_norm_epsilon", 0}}, "\"layer_norm_epsilon\" must be a number above 0.0");
  refuses({{"apply_residual_connection_post_layernorm", 1}},
          "\"apply_residual_connection_post_layernorm\" must be true or false, found 1");
}

}  // namespace
}  // namespace llm::io
