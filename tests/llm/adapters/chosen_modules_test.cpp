#include "llm/adapters/chosen_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/adapters/adapt.h"
#include "llm/adapters/peft_weights.h"
#include "tests/llm/adapters/adapter_cases.h"
#include "tests/support/expect_error.h"

namespace llm::adapters {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

std::vector<std::string> names_of(const config::AdapterSection& adapter) {
  std::vector<std::string> names;
  for (const AdaptedModule& module : choose_modules(*test::module_of(), adapter).adapted) {
    names.push_back(module.name);
  }
  return names;
}

void expect_refused_choice(const config::AdapterSection& adapter, const std::string& message,
                           sherd::ExitCode code = sherd::ExitCode::Usage) {
  sherd::test::expect_error([&] { static_cast<void>(names_of(adapter)); }, code, {message});
}

// The tensors that PEFT saved are exactly those that its rules ask for.
TEST(ChosenModules, AreThoseOfPeft) {
  SHERD_NEEDS_EXTRA_DATA("lora");
  for (const char* name : test::kCases) {
    const config::RunConfig run = test::run_of(name);
    model::CausalLm module = test::module_of(run.model.path);
    sherd::on_meta([&] { return adapt(*module, run.adapter); });
    EXPECT_NO_THROW(require_peft_tensors(*module, run.adapter)) << name;
  }
}

TEST(ChosenModules, AreNamedByTheEndsOfTheirNames) {
  EXPECT_THAT(names_of(test::lora({.names = {"q_proj", "model.layers.1.mlp.up_proj"}})),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj",
                          "model.layers.1.mlp.up_proj", "model.layers.2.self_attn.q_proj",
                          "model.layers.3.self_attn.q_proj", "model.layers.4.self_attn.q_proj"));
  EXPECT_EQ(names_of(test::lora({.pattern = "all-linear"})).size(), 5U * 7U);
  EXPECT_THAT(names_of(test::lora({.pattern = R"(model\.layers\.[03]\.(?!mlp).*\.(q|o)_proj)"})),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj",
                          "model.layers.3.self_attn.q_proj", "model.layers.3.self_attn.o_proj"));
}

// PEFT looks at layers only for names that were found by their ends.
TEST(ChosenModules, AreThoseOfTheLayersThatAreWanted) {
  config::AdapterSection adapter =
      test::lora({.names = {"q_proj", "model.layers.0.self_attn.k_proj"}});
  adapter.layers = {1, 3};
  const std::vector<std::string> expected = {"model.layers.0.self_attn.k_proj",
                                             "model.layers.1.self_attn.q_proj",
                                             "model.layers.3.self_attn.q_proj"};
  EXPECT_EQ(names_of(adapter), expected);
  adapter.layers_pattern = {"blocks", "layers"};
  EXPECT_EQ(names_of(adapter), expected);
  adapter.layers_pattern = {"blocks"};
  EXPECT_THAT(names_of(adapter), ElementsAre("model.layers.0.self_attn.k_proj"));
}

TEST(ChosenModules, LeaveOutWhatIsExcludedOrTrainedWhole) {
  config::AdapterSection adapter = test::lora({.pattern = "all-linear"});
  adapter.exclude = {.names = {"down_proj", "0.self_attn.q_proj"}};
  adapter.modules_to_save = {"layers.1.mlp", "embed_tokens"};
  const ChosenModules chosen = choose_modules(*test::module_of(), adapter);
  EXPECT_THAT(chosen.whole, ElementsAre("model.embed_tokens", "model.layers.1.mlp"));
  EXPECT_EQ(chosen.adapted.size(), 5U * 7U - 5U - 1U - 2U);
  adapter.exclude = {.pattern = ".*mlp.*"};
  EXPECT_THAT(names_of(adapter), Not(Contains("model.layers.0.mlp.up_proj")));
  EXPECT_THAT(names_of(adapter), Contains("model.layers.0.self_attn.q_proj"));
}

TEST(ChosenModules, HaveTheRankAndScaleOfTheFirstPatternThatMatches) {
  config::AdapterSection adapter = test::lora({.names = {"q_proj", "v_proj", "mlp.up_proj"}});
  adapter.rank = 4;
  adapter.alpha = 9;
  adapter.rank_stabilized = true;
  adapter.rank_pattern = {"layers.0.self_attn.q_proj=2", "[qv]_proj=16"};
  adapter.alpha_pattern = {"self_attn\\..*=1", "v_proj=5"};
  std::map<std::string, sherd::LoraShape> shapes;
  for (const AdaptedModule& module : choose_modules(*test::module_of(), adapter).adapted) {
    shapes[module.name] = module.shape;
  }
  const auto& first = shapes.at("model.layers.0.self_attn.q_proj");
  EXPECT_EQ(first.rank, 2);
  EXPECT_EQ(first.alpha, 1);
  const auto& value = shapes.at("model.layers.1.self_attn.v_proj");
  EXPECT_EQ(value.rank, 16);
  EXPECT_EQ(value.alpha, 1);
  EXPECT_EQ(value.scale(), 0.25);
  const auto& up = shapes.at("model.layers.1.mlp.up_proj");
  EXPECT_EQ(up.rank, 4);
  EXPECT_EQ(up.scale(), 4.5);
}

TEST(ChosenModules, RefuseNamesThatFindNothing) {
  expect_refused_choice(test::lora({.names = {"q_proj", "q_porj"}}),
                        "adapter.targets: \"q_porj\" is no linear map of the model. Did you mean "
                        "\"q_proj\"? Their names end in q_proj, k_proj, v_proj, o_proj, gate_proj, "
                        "up_proj, down_proj");
  expect_refused_choice(
      test::lora({.names = {"c_attention_module"}}),
      "adapter.targets: \"c_attention_module\" is no linear map of the model. Their "
      "names end in q_proj");
  expect_refused_choice(
      test::lora({.pattern = "q_proj"}),
      "adapter.targets: the pattern \"q_proj\" matches the whole name of no linear map, "
      "such as \"model.layers.0.self_attn.q_proj\". Give a list, [\"q_proj\"], for ends "
      "of names");
  expect_refused_choice(test::lora({.pattern = "x.*"}), "matches the whole name of no linear map");
  config::AdapterSection adapter = test::lora({.names = {"q_proj"}});
  adapter.layers = {9};
  expect_refused_choice(adapter,
                        "adapter.targets leaves no linear map to adapt: see adapter.layers");
  adapter = test::lora({.names = {"q_proj"}});
  adapter.modules_to_save = {"embed_token"};
  expect_refused_choice(adapter,
                        "adapter.modules_to_save: \"embed_token\" is no module of the model. Did "
                        "you mean \"embed_tokens\"?");
  adapter.modules_to_save = {"lm_head"};
  expect_refused_choice(adapter,
                        "its head is the embedding (tie_word_embeddings). Give the embedding");
}

TEST(ChosenModules, RefuseAFolderOfWhichNoNameFindsAnything) {
  config::AdapterSection adapter = test::lora({.names = {"q_prox", "c_attn"}});
  adapter.path = "folder";
  expect_refused_choice(adapter,
                        "the adapter in 'folder': adapter.targets: \"q_prox\" is no linear map of "
                        "the model. Did you mean \"q_proj\"? Their names end in q_proj, k_proj",
                        sherd::ExitCode::BadData);
  adapter.targets = {.names = {"c_attn", "q_proj"}};
  EXPECT_EQ(names_of(adapter).size(), 5U);
}

TEST(ChosenModules, RefuseModulesThatAreNoLinearMaps) {
  expect_refused_choice(test::lora({.names = {"embed_tokens"}}),
                        "adapter.targets finds \"model.embed_tokens\", which is no linear map");
  expect_refused_choice(test::lora({.pattern = ".*mlp.*"}),
                        "adapter.targets finds \"model.layers.0.mlp\", which is no linear map");
}

TEST(ChosenModules, RefusePatternsThatDoNotCompile) {
  expect_refused_choice(test::lora({.pattern = "(q_proj"}),
                        "adapter.targets: \"(q_proj\" is no regular expression");
  config::AdapterSection adapter = test::lora({.names = {"q_proj"}});
  adapter.rank_pattern = {"[q=2"};
  expect_refused_choice(adapter, "adapter.rank_pattern: \"(.*\\.)?([q)\" is no regular expression");
  adapter.path = "folder";
  expect_refused_choice(adapter, "the adapter in 'folder': adapter.rank_pattern",
                        sherd::ExitCode::BadData);
}

TEST(Adapt, FreezesEverythingElse) {
  model::CausalLm module = test::module_of();
  config::AdapterSection adapter = test::lora({.names = {"q_proj"}});
  adapter.modules_to_save = {"norm"};
  sherd::on_meta([&] { return adapt(*module, adapter); });
  std::int64_t trained = 0;
  for (const auto& parameter : module->named_parameters()) {
    const std::string& name = parameter.key();
    const bool is_ours =
        name.find("q_proj.lora_") != std::string::npos || name == "model.norm.weight";
    EXPECT_EQ(parameter.value().requires_grad(), is_ours) << name;
    trained += is_ours ? parameter.value().numel() : 0;
  }
  EXPECT_EQ(trained, 5 * 8 * (64 + 64) + 64);
  EXPECT_EQ(adapter_line(*module, adapter),
            "adapter: LoRA on 5 linear maps, rank 8, scale 2, and model.norm whole; trains 5184 of "
            "265152 parameters (1.96 %)");
}

}  // namespace
}  // namespace llm::adapters
