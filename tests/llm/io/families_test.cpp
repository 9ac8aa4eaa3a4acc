// Families of models against what transformers computed for tiny ones with random weights
// (families/ of SHERD_TEST_DATA), and their configurations with one field wrong.

#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/check/golden.h"
#include "llm/families/rope_fields.h"
#include "llm/io/export.h"
#include "llm/io/hf_config.h"
#include "llm/io/import.h"
#include "llm/model/token_batch.h"
#include "sherd/safetensors.h"
#include "tests/llm/io/model_folders.h"
#include "tests/support/test_data.h"

namespace llm::io {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFamilies[] = {"llama-linear",  "llama-yarn", "qwen2",        "qwen2-tied",
                                     "qwen3",         "mistral",    "mistral-nemo", "smollm3",
                                     "phi3-longrope", "olmo2",      "granite",      "gpt2",
                                     "phi3",          "gemma2",     "gemma3"};

void expect_small(const check::GoldenDifferences& found) {
  EXPECT_LE(found.logits, 1e-4);
  EXPECT_LE(found.loss, 1e-4);
  EXPECT_LE(found.gradient, 1e-4) << found.worst_gradient;
  EXPECT_LE(found.losses, 1e-4);
  EXPECT_LE(found.gradient_norms, 1e-4);
  EXPECT_GT(found.logits + found.gradient, 0) << "nothing was compared";
}

class Family : public testing::TestWithParam<const char*> {
 protected:
  // A copy of the model whose configuration is in the older spelling.
  static void copy_older(const fs::path& model, const fs::path& copy) {
    fs::copy(model, copy);
    fs::permissions(copy, fs::perms::owner_all, fs::perm_options::add);
    fs::remove(copy / "config.json");
    fs::copy(model / "config.old.json", copy / "config.json");
  }
};
INSTANTIATE_TEST_SUITE_P(Models, Family, testing::ValuesIn(kFamilies));

TEST_P(Family, ComputesWhatTransformersRecorded) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const fs::path folder = *sherd::test::extra_data("families") / GetParam();
  const std::string golden = folder / "golden.safetensors";
  for (const int ranks : {1, 2, 3}) {
    expect_small(check::compare_with_golden(folder, golden, ranks));
    expect_small(check::compare_with_golden(folder, golden, ranks, {}, c10::DeviceType::CPU,
                                            /*checkpoints=*/true));
  }
  const TemporaryFolder older;
  copy_older(folder, older / "model");
  expect_small(check::compare_with_golden(older / "model", golden, 1));
}

// Tools write files with the fields of transformers 4 and 5, in either order.
TEST_P(Family, ReadsBothSpellingsAtOnce) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const fs::path source = *sherd::test::extra_data("families") / GetParam();
  const Json newer = Json::parse(read_all(source / "config.json"));
  const Json older = Json::parse(read_all(source / "config.old.json"));
  for (const auto& [first, second] : {std::pair(newer, older), std::pair(older, newer)}) {
    Json both = first;
    both.update(second);
    const TemporaryFolder folder;
    fs::copy(source / "model.safetensors", folder / "model.safetensors");
    write_all(folder / "config.json", both.dump());
    expect_small(check::compare_with_golden(folder.path(), source / "golden.safetensors", 1));
  }
}

TEST_P(Family, DecodesWhatItComputes) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const std::string folder = *sherd::test::extra_data("families") / GetParam();
  auto model = build_model(read_model_folder_config(folder));
  load_weights(*model, sherd::SafetensorsFolder(folder));
  const sherd::SafetensorsFile golden(folder + "/golden.safetensors");
  const at::Tensor text = golden.read(*golden.find("input_ids"))[0];
  const at::Tensor whole = model->logits(text, sherd::ops::Documents({0, text.size(0)})).detach();
  model::KvCache cache(text.size(0));
  at::Tensor scores = model->decode(text.narrow(0, 0, 7), sherd::ops::Documents({0, 7}), cache);
  for (int64_t read = 7;; ++read) {
    const at::Tensor expected = whole[read - 1];
    EXPECT_LE((scores[0] - expected).abs().max().item<double>(),
              1e-5 * expected.abs().max().item<double>())
        << "after " << read << " tokens";
    if (read == text.size(0)) {
      break;
    }
    scores = model->decode(text.narrow(0, read, 1), sherd::ops::Documents({0, 1}), cache);
  }
}

TEST_P(Family, ComputesTextsSideBySideAsEachAlone) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const std::string folder = *sherd::test::extra_data("families") / GetParam();
  auto model = build_model(read_model_folder_config(folder));
  load_weights(*model, sherd::SafetensorsFolder(folder));
  const sherd::SafetensorsFile golden(folder + "/golden.safetensors");
  const at::Tensor ids = golden.read(*golden.find("input_ids")).flatten();
  const sherd::ops::Documents documents({0, 40, 43, 70, ids.size(0)});
  const at::Tensor packed = model->logits(ids, documents).detach();
  double loss = 0;
  for (int64_t d = 0; d < documents.count(); ++d) {
    const at::Tensor text = ids.slice(0, documents.begin(d), documents.end(d));
    const sherd::ops::Documents alone({0, documents.length(d)});
    const at::Tensor logits = model->logits(text, alone).detach();
    const at::Tensor part = packed.slice(0, documents.begin(d), documents.end(d));
    EXPECT_LE((part - logits).abs().max().item<double>(), 5e-5) << d;
    loss += model->loss_sum(text, text, alone).item<double>();
  }
  EXPECT_NEAR(model->loss_sum(ids, ids, documents).item<double>() / loss, 1, 1e-6);
}

// The golden says how far transformers' own logits in bf16 are from those in fp32.
TEST_P(Family, ComputesInBf16AsNearAsTransformersDoes) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const std::string folder = *sherd::test::extra_data("families") / GetParam();
  auto model = build_model(read_model_folder_config(folder));
  load_weights(*model, sherd::SafetensorsFolder(folder));
  model->to(at::kBFloat16);
  const sherd::SafetensorsFile golden(folder + "/golden.safetensors");
  const auto read = [&](const char* name) { return golden.read(*golden.find(name)); };
  const at::Tensor ids = read("input_ids"), lengths = read("attention_mask").sum(1);
  std::vector<at::Tensor> differences;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const auto length = lengths[row].item<int64_t>();
    const at::Tensor logits =
        model->logits(ids[row].narrow(0, 0, length), sherd::ops::Documents({0, length})).detach();
    differences.push_back((logits - read("logits")[row].narrow(0, 0, length)).flatten());
  }
  const at::Tensor all = at::cat(differences);
  EXPECT_LE(all.square().mean().sqrt().item<double>(),
            1.2 * read("bf16.logits_rms").item<double>());
  EXPECT_LE(all.abs().max().item<double>(), 1.2 * read("bf16.logits_max").item<double>());
}

// An export has the names and shapes that the model's own file has, but for what can be derived.
TEST_P(Family, ExportsTheTensorsThatItRead) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const std::string folder = *sherd::test::extra_data("families") / GetParam();
  const auto model = build_model(read_model_folder_config(folder));
  const sherd::SafetensorsFolder weights(folder);
  const auto specs = export_specs(*model, at::kFloat);
  EXPECT_EQ(specs.size(), weights.names().size());
  for (const auto& spec : specs) {
    const auto location = weights.find(spec.name);
    ASSERT_TRUE(location) << spec.name;
    EXPECT_EQ(location->entry->shape, spec.shape) << spec.name;
  }
}

// longrope's other factors: no text of this batch is longer than the original context.
TEST(Families, LongropeTakesItsShortFactorsForShortTexts) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const fs::path folder = *sherd::test::extra_data("families") / "phi3-longrope";
  expect_small(check::compare_with_golden(folder, folder / "golden.short.safetensors", 2));
  const HfConfig config = read_model_folder_config(folder);
  EXPECT_EQ(model::longrope_remark(*config.shape.rope, 24),
            "rotary positions take longrope's short factors: texts of up to 24 tokens are not "
            "longer than the 24 of the original context");
  EXPECT_EQ(model::longrope_remark(*config.shape.rope, 25),
            "rotary positions take longrope's long factors: texts of up to 25 tokens are longer "
            "than the 24 of the original context");
  EXPECT_EQ(model::longrope_remark({}, 25), "");
}

// The hub's own files of GPT-2 leave the base model's name out, and hold causal masks.
TEST(Families, Gpt2ReadsTheNamesOfTheHubsFiles) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const fs::path families = *sherd::test::extra_data("families");
  expect_small(check::compare_with_golden(families / "gpt2-hub-names",
                                          families / "gpt2" / "golden.safetensors", 2));
}

TEST(Families, Gpt2RefusesTextsBeyondItsPositions) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const std::string folder = *sherd::test::extra_data("families") / "gpt2";
  auto model = build_model(read_model_folder_config(folder));
  const at::Tensor ids = at::zeros({51}, at::kLong);
  EXPECT_THAT(
      [&] {
        static_cast<void>(model->logits(ids, sherd::ops::Documents({0, 51})));
      },
      testing::ThrowsMessage<c10::Error>(
          testing::HasSubstr("got a text of 51 tokens, but the model has learned 50 positions")));
}

// Reads a family's configuration with fields changed; null removes one.
void expect_refusal(const char* name, const Json& changes, const std::string& message) {
  const fs::path folder = *sherd::test::extra_data("families") / name;
  Json config = Json::parse(read_all(folder / "config.old.json"));
  config.merge_patch(changes);
  const TemporaryFolder broken;
  write_all(broken / "config.json", config.dump());
  expect_error([&] { static_cast<void>(read_hf_config(broken / "config.json")); },
               sherd::ExitCode::BadData, message);
}

// Fields that published files have and the tiny models here have not.
TEST(Families, ReadWhatPublishedFilesAdd) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const auto read_with = [](const char* name, const Json& changes) {
    const fs::path folder = *sherd::test::extra_data("families") / name;
    Json config = Json::parse(read_all(folder / "config.old.json"));
    config.merge_patch(changes);
    const TemporaryFolder changed;
    write_all(changed / "config.json", config.dump());
    return read_hf_config(changed / "config.json");
  };
  EXPECT_EQ(
      read_with("gpt2", {{"attn_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"_num_labels", 1}}).dropout,
      "\"attn_pdrop\" 0.1, \"embd_pdrop\" 0.1");
  EXPECT_EQ(read_with("granite", {{"attention_dropout", 0.1}}).dropout,
            "\"attention_dropout\" 0.1");
  EXPECT_EQ(read_with("phi3", {{"auto_map",
                                {{"AutoConfig", "configuration_phi3.Phi3Config"},
                                 {"AutoModelForCausalLM", "modeling_phi3.Phi3ForCausalLM"}}},
                               {"full_attn_mod", 1},
                               {"interpolate_factor", 1},
                               {"lm_head_bias", false}})
                .dropout,
            "");
  expect_refusal("phi3", {{"full_attn_mod", 2}}, "\"full_attn_mod\" 2 is not implemented, only 1");
}

TEST(Families, AreRefusedWithOneFieldThatChangesTheComputation) {
  SHERD_NEEDS_EXTRA_DATA("families");
  expect_refusal(
      "qwen2", {{"layer_types", {"full_attention", "sliding_attention"}}},
      "\"layer_types\" [\"full_attention\",\"sliding_attention\"] has layers with a window, "
      "but \"use_sliding_window\" is not true. Make them agree");
  expect_refusal("qwen2-tied", {{"layer_types", {"full_attention", "sliding_attention"}}},
                 "\"layer_types\" must be a list of 3 names, one per layer, found [");
  expect_refusal("qwen2-tied",
                 {{"layer_types", {"full_attention", "chunked_attention", "full_attention"}}},
                 "is not implemented: layer 1 is \"chunked_attention\", and layers are "
                 "\"full_attention\" or \"sliding_attention\"");
  expect_refusal("qwen2-tied", {{"sliding_window", -15}},
                 "\"sliding_window\" must be a whole number from 1 to 2147483647, found -15");
  expect_refusal("qwen2-tied", {{"use_sliding_window", "yes"}},
                 "\"use_sliding_window\" must be true or false, found \"yes\"");
  expect_refusal("qwen2", {{"qk_norm", true}}, "\"qk_norm\" true is not implemented");
  expect_refusal("qwen2", {{"architectures", {"Qwen2ForSequenceClassification"}}},
                 "only [\"Qwen2ForCausalLM\"]");
  expect_refusal("qwen2", {{"max_window_layers", "all"}},
                 "\"max_window_layers\" must be a whole number");
  expect_refusal("qwen3", {{"attention_bias", true}}, "\"attention_bias\" true is not");
  expect_refusal("qwen3", {{"num_experts", 8}}, "\"num_experts\" 8");
  expect_refusal("mistral-nemo", {{"sliding_window", 40.5}}, "found 40.5");
  expect_refusal("mistral-nemo", {{"layer_types", {"full_attention", "sliding_attention"}}},
                 "has layers with a window, but \"sliding_window\" does not say how many tokens it "
                 "holds. Set it, or make all layers \"full_attention\"");
  expect_refusal("smollm3", {{"no_rope_layers", {1, 0}}},
                 "\"no_rope_layers\" must be a list of 5 numbers, one per layer, found [1,0]");
  expect_refusal("smollm3", {{"no_rope_layers", {1, 1, 1, 2, 1}}},
                 "\"no_rope_layers\" must hold 0 and 1, found 2");
  expect_refusal("smollm3", {{"use_sliding_window", true}}, "\"use_sliding_window\" true is not");
}

TEST(Families, WithPartsOfTheirOwnAreRefusedWithAWrongOne) {
  SHERD_NEEDS_EXTRA_DATA("families");
  expect_refusal("olmo2", {{"attention_bias", true}}, "\"attention_bias\" true is not");
  expect_refusal("olmo2", {{"architectures", {"Olmo2ForTokenClassification"}}},
                 "only [\"Olmo2ForCausalLM\"]");
  expect_refusal("olmo2", {{"layer_types", {"sliding_attention", "full_attention"}}},
                 "\"layer_types\" [");
  expect_refusal("granite", {{"logits_scaling", 0}}, "\"logits_scaling\" must be a number above 0");
  expect_refusal("granite", {{"residual_multiplier", "half"}},
                 "\"residual_multiplier\" must be a number above 0");
  expect_refusal("granite", {{"num_local_experts", 4}}, "\"num_local_experts\" 4");
  expect_refusal("phi3", {{"sliding_window", nullptr}, {"partial_rotary_factor", 1.5}},
                 "1.5 makes 24 of a head's 16 dimensions");
  expect_refusal("phi3", {{"sliding_window", nullptr}, {"partial_rotary_factor", 0.2}},
                 "0.2 makes 3 of a head's 16 dimensions");
  expect_refusal(
      "phi3", {{"sliding_window", nullptr}, {"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
      "\"partial_rotary_factor\" 0.75 contradicts "
      "\"rope_parameters.partial_rotary_factor\" 0.5");
  expect_refusal("phi3-longrope", {{"rope_scaling", {{"long_factor", {1, 2}}}}},
                 "\"rope_scaling.long_factor\" has 2 factors; a head has 6 pairs");
  expect_refusal("phi3-longrope", {{"rope_scaling", {{"short_factor", nullptr}}}},
                 "\"rope_scaling.short_factor\" must be a list of numbers");
  expect_refusal("gpt2", {{"activation_function", "gelu"}},
                 "\"activation_function\" \"gelu\" is not implemented, only \"gelu_new\"");
  expect_refusal("gpt2", {{"attn_pdrop", 1}},
                 "\"attn_pdrop\" must be a number from 0 to below 1, found 1");
  expect_refusal("gpt2", {{"scale_attn_by_inverse_layer_idx", true}},
                 "\"scale_attn_by_inverse_layer_idx\" true is not");
  expect_refusal("gpt2", {{"n_head", 4}}, "\"n_head\" 4 does not divide \"n_embd\" 54");
  expect_refusal("gpt2", {{"n_ctx", 60}}, "\"n_ctx\" 60 contradicts \"n_positions\" 50");
}

TEST(Families, OfGemmaAreRefusedWithAWrongField) {
  SHERD_NEEDS_EXTRA_DATA("families");
  expect_refusal("gemma2", {{"hidden_activation", "gelu"}},
                 "\"hidden_activation\" \"gelu\" is not implemented, only \"gelu_pytorch_tanh\"");
  expect_refusal("gemma2", {{"attn_logit_softcapping", 0}},
                 "\"attn_logit_softcapping\" must be a number above 0");
  expect_refusal("gemma2", {{"query_pre_attn_scalar", -1}},
                 "\"query_pre_attn_scalar\" must be a number above 0");
  expect_refusal("gemma2", {{"layer_types", {"full_attention"}}},
                 "\"layer_types\" must be a list of 2 names");
  expect_refusal("gemma3", {{"use_bidirectional_attention", true}},
                 "\"use_bidirectional_attention\" true is not implemented");
  expect_refusal("gemma3", {{"sliding_window_pattern", 0}},
                 "\"sliding_window_pattern\" must be a whole number from 1");
  expect_refusal("gemma3", {{"rope_parameters", {{"sliding_attention", {{"rope_theta", 9}}}}}},
                 "config.json, sliding_attention: \"rope_theta\" 10000.0 contradicts "
                 "\"rope_parameters.rope_theta\" 9");
  expect_refusal("gemma3", {{"rope_parameters", {{"rope_theta", 9}}}},
                 "\"rope_parameters.rope_theta\" is not a type of layer");
  expect_refusal("gemma3", {{"model_type", "gemma3"}}, "It reads more than text");
}

// A family's shape with fields changed; null removes one, or is written where `keeps_null`.
model::DecoderConfig shape_with(const char* name, const Json& changes, bool keeps_null = false) {
  const fs::path folder = *sherd::test::extra_data("families") / name;
  Json config = Json::parse(read_all(folder / "config.old.json"));
  if (keeps_null) {
    config.update(changes);
  } else {
    config.merge_patch(changes);
  }
  const TemporaryFolder changed;
  write_all(changed / "config.json", config.dump());
  return read_hf_config(changed / "config.json").shape;
}

TEST(Families, Gemma2HasCapsWhereTheFileIsSilentAndNoneWhereItSaysNull) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const fs::path folder = *sherd::test::extra_data("families") / "gemma2";
  Json config = Json::parse(read_all(folder / "config.old.json"));
  const auto shape = [&] {
    const TemporaryFolder changed;
    write_all(changed / "config.json", config.dump());
    return read_hf_config(changed / "config.json").shape;
  };
  config.erase("attn_logit_softcapping");
  config.erase("final_logit_softcapping");
  EXPECT_EQ(shape().score_cap, 50);
  EXPECT_EQ(shape().logits.cap, 30);
  config["attn_logit_softcapping"] = nullptr;
  config["final_logit_softcapping"] = nullptr;
  EXPECT_EQ(shape().score_cap, 0);
  EXPECT_FALSE(shape().logits.cap);
}

TEST(Families, Gemma3RefusesAWindowOfNull) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const fs::path folder = *sherd::test::extra_data("families") / "gemma3";
  Json config = Json::parse(read_all(folder / "config.old.json"));
  config["sliding_window"] = nullptr;
  const TemporaryFolder changed;
  write_all(changed / "config.json", config.dump());
  expect_error([&] { static_cast<void>(read_hf_config(changed / "config.json")); },
               sherd::ExitCode::BadData,
               "\"sliding_window\" must be a number of tokens, found null: layers with a window");
}

// OLMo 3 is OLMo 2 whose windows and rotary positions depend on the layer.
TEST(Families, Olmo3HasWindowsAndRotaryPositionsByLayer) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const Json olmo3 = {{"model_type", "olmo3"}, {"architectures", {"Olmo3ForCausalLM"}}};
  const auto with = [&](Json changes) {
    changes.update(olmo3);
    return shape_with("olmo2", changes);
  };
  const model::DecoderConfig plain = with({{"num_hidden_layers", 8}});
  EXPECT_EQ(plain.layers_with_window, (std::set<int64_t>{0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(plain.window, 4'096);
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 64}};
  const model::DecoderConfig older = with({{"rope_scaling", yarn}});
  EXPECT_TRUE(std::holds_alternative<model::YarnScaling>(older.rope->scaling));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(older.window_rope->scaling));
  EXPECT_EQ(older.window_rope->theta, 500'000);
  const model::DecoderConfig newer =
      with({{"rope_theta", nullptr},
            {"rope_parameters",
             {{"full_attention", yarn}, {"sliding_attention", {{"rope_theta", 7'000.0}}}}}});
  EXPECT_TRUE(std::holds_alternative<model::YarnScaling>(newer.rope->scaling));
  EXPECT_EQ(newer.window_rope->theta, 7'000);
}

// Where no text is longer than the window, OLMo 3 computes what transformers recorded of OLMo 2;
// with a shorter window it does not.
TEST(Families, Olmo3ComputesWhatOlmo2DoesWithinTheWindow) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const fs::path source = *sherd::test::extra_data("families") / "olmo2";
  const TemporaryFolder copy;
  fs::copy(source / "model.safetensors", copy / "model.safetensors");
  Json config = Json::parse(read_all(source / "config.json"));
  config.merge_patch({{"model_type", "olmo3"},
                      {"architectures", {"Olmo3ForCausalLM"}},
                      {"rope_parameters", nullptr},
                      {"rope_theta", 500'000.0},
                      {"sliding_window", 64}});
  const auto compared = [&] {
    write_all(copy / "config.json", config.dump());
    return check::compare_with_golden(copy.path(), source / "golden.safetensors", 2);
  };
  expect_small(compared());
  config["sliding_window"] = 5;
  EXPECT_GT(compared().logits, 0.01);
}

using Layers = std::set<int64_t>;

// Mistral's files without the field mean a window of 4096, null means none.
TEST(Families, MistralWithoutItsWindowsFieldHasOne) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const model::DecoderConfig missing = shape_with("mistral", {{"sliding_window", nullptr}});
  EXPECT_EQ(missing.window, 4'096);
  EXPECT_EQ(missing.layers_with_window, Layers({0, 1}));
  const model::DecoderConfig null = shape_with("mistral", {{"sliding_window", nullptr}}, true);
  EXPECT_EQ(null.window, 0);
  EXPECT_EQ(null.layers_with_window, Layers());
}

// Of both spellings layer_types decides, as in transformers.
TEST(Families, WindowsAreOfTheLayersThatTheFileSays) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const auto layers = [](const Json& changes, bool keeps_null = false) {
    return shape_with("qwen2-tied", changes, keeps_null).layers_with_window;
  };
  EXPECT_EQ(layers(Json::object()), Layers({1, 2}));
  EXPECT_EQ(layers({{"max_window_layers", 0}}), Layers({0, 1, 2}));
  EXPECT_EQ(layers({{"max_window_layers", 2}}), Layers({2}));
  EXPECT_EQ(layers({{"max_window_layers", nullptr}}), Layers());  // 28
  EXPECT_EQ(layers({{"use_sliding_window", false}}), Layers());
  EXPECT_EQ(layers({{"sliding_window", nullptr}}), Layers({1, 2}));  // 4096
  EXPECT_EQ(layers({{"sliding_window", nullptr}}, /*keeps_null=*/true), Layers());
  EXPECT_EQ(layers({{"layer_types", {"sliding_attention", "full_attention", "full_attention"}}}),
            Layers({0}));
}

TEST(Families, RotaryPositionsAreThoseOfTransformers) {
  SHERD_NEEDS_EXTRA_DATA("families/rope.json");
  int compared = 0;
  for (const Json& golden : Json::parse(read_all(*sherd::test::extra_data("families/rope.json")))) {
    const std::string name = golden["name"];
    const bool is_phi3 = golden.contains("original_max_position_embeddings");
    const Json config = {{"rope_parameters", golden["rope_parameters"]}};
    const model::RopeConfig rope = families::read_rope(
        families::JsonFields(config, "config.json"),
        {.context_length = golden["max_position_embeddings"],
         .head_size = golden["head_dim"],
         .is_partial = is_phi3,
         .original_context =
             is_phi3 ? golden["original_max_position_embeddings"].get<int64_t>() : 0,
         .yarn_is_longrope = is_phi3});
    EXPECT_NEAR(rope.attention_factor(), golden["attention_factor"].get<double>(), 1e-12) << name;
    const at::Tensor frequencies =
        model::rope_frequencies(rope, golden["head_dim"], golden.value("tokens", int64_t{0}));
    const auto expected = golden["inv_freq"].get<std::vector<double>>();
    ASSERT_EQ(frequencies.size(0), static_cast<int64_t>(expected.size())) << name;
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(frequencies[static_cast<int64_t>(i)].item<double>() / expected[i], 1, 1e-6)
          << name << " " << i;
    }
    ++compared;
  }
  EXPECT_EQ(compared, 20);
}

}  // namespace
}  // namespace llm::io
