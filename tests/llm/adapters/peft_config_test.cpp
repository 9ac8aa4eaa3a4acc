#include "llm/adapters/peft_config.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/adapters/adapt.h"
#include "tests/llm/adapters/adapter_cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::adapters {
namespace {

using Json = nlohmann::ordered_json;
using sherd::test::TempFolder;

const Json kConfig = {{"peft_type", "LORA"},
                      {"task_type", "CAUSAL_LM"},
                      {"r", 4},
                      {"lora_alpha", 9},
                      {"lora_dropout", 0.1},
                      {"target_modules", {"q_proj", "v_proj"}},
                      {"base_model_name_or_path", "../base"}};

// A folder whose adapter_config.json is kConfig with these changes; null removes a field.
class Folder {
 public:
  explicit Folder(const Json& changes = Json::object(), const Json& more = Json::object()) {
    Json config = kConfig;
    config.merge_patch(changes);
    config.update(more);
    std::ofstream(folder_.path() / kPeftConfigFile) << config.dump();
  }
  [[nodiscard]] std::string path() const { return folder_.path().string(); }

 private:
  TempFolder folder_;
};

void expect_refused_config(const Json& changes, const std::string& message) {
  const Folder folder(changes);
  sherd::test::expect_error([&] { static_cast<void>(read_peft_config(folder.path())); },
                            sherd::ExitCode::BadData,
                            {folder.path() + "/adapter_config.json: " + message});
}

TEST(PeftConfig, SaysWhatTheFileSays) {
  const Folder folder({{"use_rslora", true},
                       {"exclude_modules", ".*0.*"},
                       {"rank_pattern", {{"q_proj", 7}, {"layers.1.v_proj", 2}}},
                       {"alpha_pattern", {{"v_proj", 2.5}}},
                       {"layers_to_transform", 3},
                       {"layers_pattern", "layers"},
                       {"modules_to_save", {"lm_head"}}});
  const PeftConfig read = read_peft_config(folder.path());
  config::AdapterSection expected = test::lora({.names = {"q_proj", "v_proj"}});
  expected.path = folder.path();
  expected.rank = 4;
  expected.alpha = 9;
  expected.dropout = 0.1;
  expected.exclude = {.pattern = ".*0.*"};
  expected.rank_stabilized = true;
  expected.rank_pattern = {"q_proj=7", "layers.1.v_proj=2"};
  expected.alpha_pattern = {"v_proj=2.5"};
  expected.layers = {3};
  expected.layers_pattern = {"layers"};
  expected.modules_to_save = {"lm_head"};
  EXPECT_EQ(read.adapter, expected);
  EXPECT_EQ(read.base, "../base");
}

TEST(PeftConfig, ReadsFieldsThatSayNothing) {
  const Folder folder(Json::object(), {{"use_dora", false},
                                       {"loftq_config", Json::object()},
                                       {"eva_config", nullptr},
                                       {"a_field_of_tomorrow", nullptr},
                                       {"another", false},
                                       {"init_lora_weights", "gaussian"},
                                       {"peft_version", "0.99"},
                                       {"target_parameters", Json::array()}});
  EXPECT_EQ(read_peft_config(folder.path()).adapter.rank, 4);
}

TEST(PeftConfig, RefusesByNameWhatChangesTheComputation) {
  expect_refused_config({{"peft_type", "IA3"}},
                        "\"peft_type\" \"IA3\" is not supported, only \"LORA\"");
  expect_refused_config({{"task_type", "SEQ_CLS"}}, "\"task_type\" \"SEQ_CLS\" is not supported");
  expect_refused_config(
      {{"bias", "lora_only"}},
      "\"bias\" \"lora_only\" is not supported, only \"none\": biases of the base are "
      "not trained");
  expect_refused_config(
      {{"use_dora", true}},
      "\"use_dora\" true is not supported: DoRA scales the rows of the sum of weight and "
      "adapter");
  expect_refused_config(
      {{"init_lora_weights", "pissa_niter_4"}},
      "\"init_lora_weights\" \"pissa_niter_4\" is not supported: it changes the base");
  for (const char* field : {"lora_bias", "use_qalora", "use_bdlora", "a_field_of_tomorrow"}) {
    expect_refused_config({{field, true}}, "\"" + std::string(field) + "\" true is not supported");
  }
  expect_refused_config({{"loftq_config", {{"bits", 4}}}}, "\"loftq_config\" {\"bits\":4} is not");
  expect_refused_config({{"trainable_token_indices", {1}}},
                        "\"trainable_token_indices\" [1] is not");
  expect_refused_config({{"layer_replication", {{0, 1}}}}, "\"layer_replication\" [[0,1]] is not");
}

TEST(PeftConfig, RefusesValuesThatCannotBeRight) {
  expect_refused_config({{"r", 0}}, "\"r\" must have a whole number from 1 to 65536, found 0");
  expect_refused_config({{"r", 2.5}}, "\"r\" must have a whole number");
  expect_refused_config({{"lora_alpha", 0}}, "\"lora_alpha\" must be a number above 0, found 0");
  expect_refused_config({{"lora_dropout", 1}}, "\"lora_dropout\" must be a number of at least 0");
  expect_refused_config({{"target_modules", nullptr}}, "\"target_modules\" is empty");
  expect_refused_config({{"target_modules", {1}}},
                        "\"target_modules\" must be a list of names, found [1]");
  expect_refused_config({{"rank_pattern", {{"q_proj", 0}}}},
                        "\"rank_pattern\" must have a whole number");
  expect_refused_config({{"alpha_pattern", {{"q_proj", "a"}}}},
                        "\"alpha_pattern\" must be an object of");
  expect_refused_config({{"layers_to_transform", {-1}}},
                        "\"layers_to_transform\" must be a whole number");
  expect_refused_config({{"layers_to_transform", {0}}, {"target_modules", ".*q_proj"}},
                        "\"layers_to_transform\" is for a list in \"target_modules\", and that is "
                        "\".*q_proj\"");
  expect_refused_config({{"use_rslora", "yes"}},
                        "\"use_rslora\" must be true or false, found \"yes\"");
  const TempFolder empty;
  sherd::test::expect_error([&] { static_cast<void>(read_peft_config(empty.path().string())); },
                            sherd::ExitCode::InputMissing, {"adapter_config.json"});
}

TEST(PeftConfig, FindsItsBaseBesideTheFolder) {
  const TempFolder parent;
  std::filesystem::create_directories(parent.path() / "base");
  PeftConfig config{.adapter = {.path = (parent.path() / "adapter").string()}, .base = "../base"};
  EXPECT_EQ(base_folder_of(config), (parent.path() / "base").string());
  config.base = "org/name";
  EXPECT_EQ(base_folder_of(config), "org/name");
  config.base = "/else/where";
  EXPECT_EQ(base_folder_of(config), "/else/where");
}

TEST(WithFolder, TakesWhatTheFolderDecidesAndRefusesOtherWords) {
  const Folder folder;
  config::AdapterSection given = test::lora({.pattern = "all-linear"});
  EXPECT_EQ(with_folder(given), given);
  given.path = folder.path();
  given.dropout = 0.3;
  const config::AdapterSection whole = with_folder(given);
  EXPECT_EQ(whole.rank, 4);
  EXPECT_EQ(whole.dropout, 0.3);
  EXPECT_EQ(whole.targets, (config::ModuleChoice{.names = {"q_proj", "v_proj"}}));
  EXPECT_EQ(with_folder(whole), whole);  // as the run's own configuration says it
  given.rank = 2;
  given.layers = {1};
  sherd::test::expect_error([&] { static_cast<void>(with_folder(given)); }, sherd::ExitCode::Usage,
                            {"adapter.rank, adapter.layers differ from the adapter in '" +
                             folder.path() + "', which adapter.path starts from: leave them out"});
}

TEST(DecidedBy, IsWithFolderWithoutTheFolder) {
  config::AdapterSection given = test::lora({.pattern = "all-linear"});
  given.path = "there";
  given.dropout = 0.3;
  config::AdapterSection before = test::lora({.names = {"q_proj"}});
  before.path = "here";
  before.rank = 4;
  const config::AdapterSection whole = decided_by(before, given);
  EXPECT_EQ(whole.path, "there");
  EXPECT_EQ(whole.rank, 4);
  EXPECT_EQ(whole.dropout, 0.3);
  EXPECT_EQ(whole.targets, before.targets);
  given.rank = 2;
  sherd::test::expect_error([&] { static_cast<void>(decided_by(before, given)); },
                            sherd::ExitCode::Usage,
                            {"adapter.rank differs from the adapter in 'there'"});
}

// The written text is read again; "all-linear" as names that tools with lists of names read too.
TEST(PeftConfig, IsWrittenAsItIsRead) {
  config::AdapterSection adapter = test::lora({.pattern = "all-linear"});
  adapter.rank_pattern = {"q_proj=7"};
  adapter.alpha_pattern = {"v_proj=2.5"};
  adapter.modules_to_save = {"embed_tokens"};
  for (const char* exclude : {"", "0.mlp.down_proj"}) {
    adapter.exclude =
        *exclude == 0 ? config::ModuleChoice{} : config::ModuleChoice{.names = {exclude}};
    model::CausalLm module = test::module_of();
    sherd::on_meta([&] { return adapt(*module, adapter); });
    const TempFolder folder;
    std::ofstream(folder.path() / kPeftConfigFile)
        << peft_config_text(*module, adapter, "/base", /*tied_embedding=*/true, "v2");
    const PeftConfig read = read_peft_config(folder.path().string());
    EXPECT_EQ(read.revision, "v2");
    EXPECT_TRUE(read.ties_weights);
    EXPECT_EQ(read.base, "/base");
    EXPECT_THAT(read.adapter.targets.names,
                testing::ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj",
                                     "up_proj", "v_proj"));
    config::AdapterSection again = read.adapter;
    again.targets = adapter.targets;
    again.path = "";
    EXPECT_EQ(again, adapter);
  }
}

}  // namespace
}  // namespace llm::adapters
