#include "llm/io/hf_config.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "tests/llm/io/model_folders.h"
#include "tests/support/temp_folder.h"

namespace llm::io {
namespace {

using nlohmann::json;

const json kRope = {{"rope_type", "llama3"},
                    {"factor", 8.0},
                    {"low_freq_factor", 1.0},
                    {"high_freq_factor", 4.0},
                    {"original_max_position_embeddings", 64}};

json rope_with(const char* field, const json& value) {
  json rope = kRope;
  rope[field] = value;
  return rope;
}

const model::DecoderConfig& llama_of(const HfConfig& config) {
  return config.shape;
}

// The stories model's config.json with some fields changed.
class HfConfigTest : public testing::Test {
 protected:
  HfConfig read(const json& changes, const std::vector<std::string>& removed = {}) {
    json config = json::parse(read_all(kData + "stories260k-hf/config.json"));
    config.update(changes);
    for (const std::string& field : removed) {
      config.erase(field);
    }
    write_all(path(), config.dump());
    return read_hf_config(path());
  }
  void refuses(const json& changes, const std::string& message) {
    expect_error([&] { read(changes); }, sherd::ExitCode::BadData, path() + ": " + message);
  }
  void refuses_without(const std::string& field) {
    expect_error([&] { read(json::object(), {field}); }, sherd::ExitCode::BadData,
                 path() + ": \"" + field + "\" is missing");
  }
  [[nodiscard]] std::string path() const { return folder_ / "config.json"; }

 private:
  TemporaryFolder folder_;
};

TEST_F(HfConfigTest, ReadsTheStoriesModel) {
  const HfConfig config = read(json::object());
  EXPECT_EQ(std::string(config.family->model_type), "llama");
  EXPECT_EQ(config.dtype, at::kFloat);
  EXPECT_EQ(llama_of(config).hidden_size, 64);
  EXPECT_EQ(llama_of(config).feed_forward_size, 172);
  EXPECT_EQ(llama_of(config).layers, 5);
  EXPECT_EQ(llama_of(config).heads, 8);
  EXPECT_EQ(llama_of(config).key_heads, 4);
  EXPECT_EQ(llama_of(config).head_size, 8);
  EXPECT_EQ(llama_of(config).vocab_size, 512);
  EXPECT_EQ(llama_of(config).context_length, 512);
  EXPECT_EQ(llama_of(config).norm_epsilon, 1e-5);
  EXPECT_TRUE(llama_of(config).tied_embedding);
  EXPECT_EQ(llama_of(config).rope->theta, 10'000);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(llama_of(config).rope->scaling));
  EXPECT_EQ(config.shape.initializer_range, 0.02);
}

TEST_F(HfConfigTest, BothSpellingsOfRotarySettingsAndDtypeMeanTheSame) {
  for (const char* file : {"config.json", "config.v5.json"}) {
    SCOPED_TRACE(file);
    const HfConfig config = read_hf_config(kData + "tiny-llama3-hf/" + file);
    EXPECT_EQ(config.dtype, at::kBFloat16);
    EXPECT_EQ(llama_of(config).rope->theta, 500'000);
    const auto scaling = std::get<model::Llama3Scaling>(llama_of(config).rope->scaling);
    EXPECT_EQ(scaling.factor, 8);
    EXPECT_EQ(scaling.low_freq_factor, 1);
    EXPECT_EQ(scaling.high_freq_factor, 4);
    EXPECT_EQ(scaling.original_context_tokens, 64);
  }
}

TEST_F(HfConfigTest, MissingFieldsHaveTransformersDefaults) {
  const HfConfig config =
      read(json::object(), {"num_key_value_heads", "head_dim", "max_position_embeddings",
                            "rms_norm_eps", "rope_theta", "rope_scaling", "tie_word_embeddings",
                            "torch_dtype", "hidden_act", "attention_bias", "mlp_bias"});
  EXPECT_EQ(llama_of(config).key_heads, 8);
  EXPECT_EQ(llama_of(config).head_size, 8);
  EXPECT_EQ(llama_of(config).context_length, 2'048);
  EXPECT_EQ(llama_of(config).norm_epsilon, 1e-6);
  EXPECT_EQ(llama_of(config).rope->theta, 10'000);
  EXPECT_FALSE(llama_of(config).tied_embedding);
  EXPECT_FALSE(config.dtype);
}

TEST_F(HfConfigTest, AcceptsWhatChangesNothing) {
  read({{"use_cache", false},
        {"pretraining_tp", 2},
        {"sliding_window", nullptr},
        {"attention_dropout", 0},
        {"partial_rotary_factor", 1},
        {"layer_types", {"full_attention", "full_attention"}},
        {"rope_scaling", {{"rope_type", "default"}}},
        {"transformers.js_config", {{"kv_cache_dtype", "float16"}}},
        {"is_llama_config", true},
        {"unheard_of_flag", false},
        {"unheard_of_text", ""},
        {"unheard_of_list", json::array()},
        {"unheard_of_table", json::object()},
        {"unheard_of_thing", nullptr}});
}

TEST_F(HfConfigTest, RefusesAFieldThatIsNotKnownUnlessItIsToBeIgnored) {
  for (const json& value :
       {json("x"), json(true), json(0), json(1.5), json({1}), json({{"a", 1}})}) {
    refuses({{"query_rescaling", value}},
            "\"query_rescaling\" " + value.dump() +
                " is unknown, and may change what the model computes. If it does not, ignore it "
                "with model.ignore_fields = [\"query_rescaling\"], or remove it");
  }
  refuses({{"slow_but_exact", true}},
          "\"slow_but_exact\" true is unknown, and may change");  // BLOOM's
  const HfConfig config = [&] {
    expect_error(
        [&] {
          read({{"query_rescaling", 2}, {"attention_bias", true}});
        },
        sherd::ExitCode::BadData, path() + ": ");
    return read_hf_config(path(), {{"query_rescaling", "attention_bias", "not_there"}});
  }();
  EXPECT_EQ(config.shape.hidden_size, 64);
  expect_error([&] { (void)read_hf_config(path(), {{"query_rescaling"}}); },
               sherd::ExitCode::BadData, path() + ": \"attention_bias\" true is not implemented");
  expect_error(
      [&] {
        (void)read_hf_config(path(), {{"query_rescaling", "attention_bias", "hidden_size"}});
      },
      sherd::ExitCode::BadData, path() + ": \"hidden_size\" is missing");
}

TEST_F(HfConfigTest, TellsHowAFieldIsIgnoredAsTheProgramAtHandIsTold) {
  expect_error(
      [&] {
        read({{"query_rescaling", 2}, {"neftune", 5}});
      },
      sherd::ExitCode::BadData, "model.ignore_fields = [\"");
  expect_error(
      [&] {
        (void)read_hf_config(path(), {{"query_rescaling"}, families::IgnoreBy::Flag});
      },
      sherd::ExitCode::BadData, "ignore it with --ignore-fields neftune, or remove it");
}

// As published, with all that other programs left in them.
TEST(PublishedConfigs, AreRead) {
  const auto shape_of = [](const char* name) {
    return read_hf_config(kData + "configs/" + name).shape;
  };
  const model::DecoderConfig smollm = shape_of("smollm2-135m-instruct.json");
  EXPECT_EQ(smollm.layers, 30);
  EXPECT_EQ(smollm.head_size, 64);
  EXPECT_EQ(smollm.rope->theta, 100'000);
  const model::DecoderConfig llama = shape_of("llama-3.1-8b-instruct.json");
  EXPECT_EQ(llama.key_heads, 8);
  EXPECT_EQ(std::get<model::Llama3Scaling>(llama.rope->scaling).original_context_tokens, 8'192);
  const model::DecoderConfig bloom = shape_of("bloom-560m.json");
  EXPECT_EQ(bloom.layers, 24);
  EXPECT_EQ(bloom.feed_forward_size, 4'096);
  EXPECT_FALSE(bloom.rope);
}

TEST_F(HfConfigTest, RefusesByNameWhatIsNotImplemented) {
  refuses({{"model_type", "falcon"}},
          "\"model_type\" \"falcon\" is not implemented, only \"llama\", \"qwen2\", \"qwen3\", ");
  expect_error(
      [&] {
        read({{"model_type", "qwen3_moe"}});
      },
      sherd::ExitCode::BadData,
      "\"bloom\". It is a mixture of experts; dense models of the families work");
  expect_error(
      [&] {
        read({{"model_type", "gemma3"}});
      },
      sherd::ExitCode::BadData,
      "\"bloom\". It reads more than text; a folder of its text model alone works: load that part "
      "in "
      "transformers, as Gemma3ForCausalLM");
  refuses({{"attention_bias", true}}, "\"attention_bias\" true is not implemented, only false");
  refuses({{"mlp_bias", true}}, "\"mlp_bias\" true is not implemented, only false");
  refuses({{"sliding_window", 4'096}}, "\"sliding_window\" 4096 is not implemented, only null");
  refuses({{"hidden_act", "gelu"}}, "\"hidden_act\" \"gelu\" is not implemented, only \"silu\"");
  refuses({{"attention_dropout", 1}},
          "\"attention_dropout\" must be a number from 0 to below 1, found 1");
  refuses({{"auto_map", {{"AutoModelForCausalLM", "modeling_own.OwnForCausalLM"}}}},
          "\"auto_map\" {\"AutoModelForCausalLM\":\"modeling_own.OwnForCausalLM\"} names code of "
          "its own");
  refuses({{"partial_rotary_factor", 0.5}}, "\"partial_rotary_factor\" 0.5 is not implemented");
  refuses({{"quantization_config", {{"bits", 4}}}}, "\"quantization_config\" {\"bits\":4} is not");
  refuses({{"architectures", {"LlamaForSequenceClassification"}}}, "\"architectures\" [\"LlamaFor");
  refuses({{"layer_types", {"full_attention", "sliding_attention"}}}, "\"layer_types\" [");
  refuses({{"auto_map", {{"AutoModel", "m.M"}}}}, "\"auto_map\" {");
  refuses({{"torch_dtype", "float8_e4m3fn"}},
          "\"torch_dtype\" \"float8_e4m3fn\" is not implemented");
}

TEST_F(HfConfigTest, RefusesOtherRotarySettings) {
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const std::string name = std::string("\"") + field;
    refuses({{field, {{"rope_type", "dynamic"}, {"factor", 2}}}},
            name +
                ".rope_type\" \"dynamic\" is not implemented, only \"default\", \"linear\", "
                "\"llama3\", \"yarn\" and \"longrope\"");
    refuses({{field, {{"type", "longrope"}, {"factor", 2}}}},
            name + ".original_max_position_embeddings\" is missing");
    refuses({{field, {{"type", "longrope"}, {"original_max_position_embeddings", 64}}}},
            name + ".short_factor\" must be a list of numbers");
    refuses({{field,
              {{"type", "longrope"},
               {"original_max_position_embeddings", 64},
               {"short_factor", {1, 0}},
               {"long_factor", {1}}}}},
            name + ".short_factor\" must hold numbers above 0, found 0");
    refuses({{field,
              {{"type", "longrope"},
               {"original_max_position_embeddings", 64},
               {"short_factor", {1, 2, 3}},
               {"long_factor", {1, 2, 3}}}}},
            name + ".short_factor\" has 3 factors; a head has ");
    refuses({{field, {{"type", "linear"}}}}, name + ".factor\" is missing");
    refuses({{field, {{"type", "linear"}, {"factor", 2}, {"beta_fast", 2}}}},
            name + ".beta_fast\" is not implemented with rope_type \"linear\"");
    refuses({{field, {{"type", "yarn"}, {"factor", 2}, {"beta_fast", 1}, {"beta_slow", 3}}}},
            name + ".beta_fast\" must not be below \"beta_slow\"");
    refuses({{field, {{"type", "yarn"}, {"factor", 2}, {"truncate", 1}}}},
            name + ".truncate\" must be true or false, found 1");
    refuses({{field, rope_with("attention_factor", 1)}}, name + ".attention_factor\" is not");
    refuses({{field, rope_with("factor", nullptr)}}, name + ".factor\" is missing");
    refuses({{field, rope_with("factor", -8)}}, name + ".factor\" must be a number above 0.0");
    refuses({{field, rope_with("high_freq_factor", 1)}},
            name + ".high_freq_factor\" must be above");
    refuses({{field, rope_with("type", "linear")}}, name + ".type\" \"linear\" contradicts");
    refuses({{field, rope_with("partial_rotary_factor", 0.5)}},
            name + ".partial_rotary_factor\" 0.5");
    refuses({{field, rope_with("rope_theta", 7)}},
            "\"rope_theta\" 10000.0 contradicts " + name + ".rope_theta\" 7");
    refuses({{field, 3}}, name + "\" must be an object or null, found 3");
  }
  refuses({{"rope_scaling", kRope}, {"rope_parameters", rope_with("factor", 4)}},
          "\"rope_scaling.factor\" 8.0 contradicts \"rope_parameters.factor\" 4");
  refuses({{"rope_scaling", kRope}, {"rope_parameters", {{"rope_type", "default"}}}},
          "\"rope_scaling.rope_type\" \"llama3\" contradicts \"rope_parameters.rope_type\" "
          "\"default\"");
}

TEST_F(HfConfigTest, BothSpellingsTogetherSayWhatOneSaysAlone) {
  json renamed = kRope;
  renamed.erase("rope_type");
  renamed["type"] = "llama3";
  for (const json& scaling : {kRope, renamed, json{{"factor", 8}}, json::object(), json()}) {
    const HfConfig config =
        read({{"rope_scaling", scaling}, {"rope_parameters", rope_with("rope_theta", 10'000)}});
    EXPECT_EQ(llama_of(config).rope->theta, 10'000);
    EXPECT_EQ(std::get<model::Llama3Scaling>(llama_of(config).rope->scaling).factor, 8);
  }
}

TEST_F(HfConfigTest, RefusesValuesThatCannotBeRight) {
  for (const char* field : {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "vocab_size"}) {
    refuses_without(field);
  }
  refuses({{"hidden_size", "64"}},
          "\"hidden_size\" must be a whole number from 1 to 2147483647, found \"64\"");
  refuses({{"hidden_size", -64}}, "\"hidden_size\" must be a whole number from 1");
  refuses({{"hidden_size", 64.5}}, "\"hidden_size\" must be a whole number from 1");
  refuses({{"vocab_size", 0}}, "\"vocab_size\" must be a whole number from 1");
  refuses({{"num_hidden_layers", 1'000'000}},
          "\"num_hidden_layers\" must be a whole number from 1 to 4096");
  refuses({{"num_key_value_heads", 3}},
          "\"num_key_value_heads\" 3 does not divide \"num_attention_heads\" 8");
  refuses({{"num_attention_heads", 7}, {"num_key_value_heads", 7}, {"head_dim", nullptr}},
          "\"num_attention_heads\" 7 does not divide \"hidden_size\" 64");
  refuses({{"head_dim", 7}}, "\"head_dim\" 7 is odd");
  refuses({{"num_attention_heads", 2'000'000'000}, {"num_key_value_heads", 1}},
          "\"num_attention_heads\" times \"head_dim\" is beyond");
  refuses({{"rms_norm_eps", 0}}, "\"rms_norm_eps\" must be a number above 0.0, found 0");
  refuses({{"rope_theta", -1}}, "\"rope_theta\" must be a number above 0.0");
  refuses({{"tie_word_embeddings", 1}}, "\"tie_word_embeddings\" must be true or false, found 1");
  refuses({{"model_type", 3}}, "\"model_type\" must be a string, found 3");
  refuses({{"dtype", "bfloat16"}}, "\"dtype\" \"bfloat16\" contradicts \"torch_dtype\"");
}

// Whoever prints, compares or copies a value does so by recursion.
TEST_F(HfConfigTest, RefusesFieldsNestedWithoutBound) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  for (const char* field : {"rope_scaling", "layer_types", "bos_token_id", "torch_dtype",
                            "hidden_size", "quantization_config"}) {
    json config = json::parse(read_all(kData + "stories260k-hf/config.json"));
    config[field] = "@";
    std::string text = config.dump();
    write_all(path(), text.replace(text.find("\"@\""), 3, deep));
    expect_error([&] { (void)read_hf_config(path()); }, sherd::ExitCode::BadData,
                 path() + ": nested deeper than 64 levels");
  }
}

TEST_F(HfConfigTest, IsReadFromARegularFileAlone) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  expect_error([&] { (void)read_hf_config(path()); }, sherd::ExitCode::BadData,
               path() + ": expected a regular file, found a pipe");
  std::filesystem::remove(path());
  std::filesystem::create_symlink("/dev/zero", path());
  expect_error([&] { (void)read_hf_config(path()); }, sherd::ExitCode::BadData,
               path() + ": expected a regular file, found a device");
  std::filesystem::remove(path());
  expect_error([&] { (void)read_hf_config(path()); }, sherd::ExitCode::InputMissing,
               path() + ": cannot be opened: No such file or directory; a Hugging Face model");
}

// What a folder without a model has instead.
TEST(ModelFactory, AFolderWithoutAModelIsToldWhereOneIs) {
  namespace fs = std::filesystem;
  const sherd::test::TempFolder folder;
  const std::string outer = folder.path() / "outer";
  const std::string inner = outer + "/snapshot";
  fs::create_directories(inner);
  std::ofstream(inner + "/config.json") << "{}";
  const auto needs = [](const std::string& model) {
    return [model] { require_model_folder(model, {kConfigFile, kTokenizerFile}); };
  };
  expect_error(needs(outer), sherd::ExitCode::InputMissing,
               "the model folder '" + outer +
                   "' has no config.json and no tokenizer.json. Its folder '" + inner +
                   "' has config.json: give that one. A model folder has");
  std::ofstream(inner + "/tokenizer.model") << "";
  expect_error(needs(inner), sherd::ExitCode::InputMissing,
               "has no tokenizer.json. It has tokenizer.model, from which transformers writes the "
               "missing file: python3 -c 'from transformers import AutoTokenizer; "
               "AutoTokenizer.from_pretrained(\"" +
                   inner + "\").save_pretrained(\"" + inner + "\")'. A model folder has");
  expect_error(needs(inner + "/config.json"), sherd::ExitCode::InputMissing,
               "'" + inner + "/config.json' is a file, and a model folder is needed here.");
}

TEST(ModelFactory, AFolderThatIsNotThereIsAMissingInput) {
  expect_error([] { (void)read_model_folder_config("/nowhere"); }, sherd::ExitCode::InputMissing,
               "the model folder '/nowhere' does not exist. A model folder has config.json, "
               "model.safetensors and tokenizer.json.");
}

}  // namespace
}  // namespace llm::io
