#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "llm/config/run_config.h"

namespace llm::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunConfig complete() {
  RunConfig config;
  config.model.path = "m";
  config.data.train = {{.path = "t"}};
  config.train.output = "o";
  return config;
}

std::vector<std::string> faults_of(const RunConfig& config) {
  std::vector<std::string> texts;
  for (const Fault& fault : validate(config)) {
    texts.push_back(fault.key + "| " + fault.text);
  }
  return texts;
}

TEST(Validate, FindsNothingWrongWithTheDefaults) {
  EXPECT_THAT(faults_of(complete()), ElementsAre());
}

TEST(Validate, NamesWhatIsMissing) {
  const std::vector<Fault> faults = validate(RunConfig{});
  ASSERT_EQ(faults.size(), 3);
  EXPECT_EQ(faults[0].key, "data.train");
  EXPECT_EQ(faults[1].key, "model.path");
  EXPECT_EQ(faults[2].key, "train.output");
}

TEST(Validate, ChecksDateAndArgumentsOfChatTemplates) {
  RunConfig config = complete();
  config.data.date = "2026-02-30";
  config.data.template_arguments = {"enable_thinking=false", "enable_thinking"};
  EXPECT_THAT(
      faults_of(config),
      ElementsAre("data.date| data.date = \"2026-02-30\" is no date: give YYYY-MM-DD, for "
                  "example \"2026-01-01\"",
                  "data.template_arguments| data.template_arguments: \"enable_thinking\" is "
                  "no NAME=VALUE, for example \"enable_thinking=false\""));
}

TEST(Validate, ChecksTheBatch) {
  RunConfig config = complete();
  config.train.micro_batch = 16;
  EXPECT_THAT(
      faults_of(config),
      ElementsAre(
          "train.micro_batch| train.micro_batch = 16 is larger than train.global_batch = 8"));
  config.train.micro_batch = 3;
  EXPECT_THAT(faults_of(config),
              ElementsAre("train.global_batch| train.global_batch = 8 is not a "
                          "multiple of train.micro_batch = 3: set train.global_batch = 6 or 9"));
  config.train.micro_batch = 8;
  EXPECT_THAT(faults_of(config), ElementsAre());
}

TEST(Validate, ChecksThatWhatIsTheBestCanBeTold) {
  RunConfig config = complete();
  config.eval.patience = 3;
  config.checkpoint.export_of = ExportOf::Best;
  EXPECT_THAT(
      faults_of(config),
      ElementsAre(
          "eval.patience| eval.patience = 3 needs evaluations: give data.eval and eval.every",
          "checkpoint.export| checkpoint.export = \"best\" needs evaluations: give "
          "data.eval and eval.every"));
  config.data.eval = {{.path = "e"}};
  EXPECT_THAT(faults_of(config), ElementsAre());
  config.eval.every = Every{};
  config.eval.at_end = false;
  EXPECT_EQ(faults_of(config).size(), 2U);
}

TEST(Validate, ChecksThatWhatTellsTheBestIsMeasured) {
  RunConfig config = complete();
  config.data.eval = {{.path = "e"}};
  config.eval.best_by = BestBy::Em;
  EXPECT_THAT(faults_of(config), ElementsAre("eval.best_by| eval.best_by = \"em\" needs answers: "
                                             "give eval.generate = true"));
  config.eval.generate = true;
  EXPECT_THAT(faults_of(config), ElementsAre());
}

TEST(Validate, ChecksThatThereIsSomethingToExport) {
  RunConfig config = complete();
  config.checkpoint.export_of = ExportOf::End;
  EXPECT_THAT(faults_of(config), ElementsAre());
  config.checkpoint.at_end = false;
  EXPECT_THAT(faults_of(config),
              ElementsAre("checkpoint.export| checkpoint.export = \"end\" needs a checkpoint of "
                          "the last step: give checkpoint.at_end = true"));
}

TEST(Validate, ChecksTheWarmUpIfTheLengthIsGiven) {
  RunConfig config = complete();
  config.schedule.warmup = {11, 0};
  EXPECT_THAT(faults_of(config), ElementsAre());
  config.train.max_steps = 10;
  EXPECT_THAT(faults_of(config),
              ElementsAre("schedule.warmup| schedule.warmup = \"11 steps\" is more "
                          "than train.max_steps = 10"));
  config.schedule.warmup = {10, 0};
  EXPECT_THAT(faults_of(config), ElementsAre());
}

TEST(Validate, WantsRoomForTheQuestion) {
  RunConfig config = complete();
  config.data.max_length = 32;
  EXPECT_THAT(faults_of(config),
              ElementsAre("data.max_answer_tokens| data.max_answer_tokens = 32 leaves no room for "
                          "the question in data.max_length = 32"));
  config.data.max_length = 33;
  EXPECT_THAT(faults_of(config), ElementsAre());
}

TEST(Validate, WantsQuestionsForAnEvaluationThatIsAskedFor) {
  RunConfig config = complete();
  config.eval.generate = true;
  EXPECT_THAT(
      faults_of(config),
      ElementsAre("eval.generate| eval.generate = true needs questions to answer: give data.eval"));
  config.data.eval = {{.path = "e"}};
  EXPECT_THAT(faults_of(config), ElementsAre());
}

TEST(Validate, ChecksAdapters) {
  RunConfig config = complete();
  config.adapter = {.layers = {0}};
  EXPECT_THAT(faults_of(config), ElementsAre());  // adapter.kind is none
  config.adapter.kind = AdapterKind::Lora;
  EXPECT_THAT(faults_of(config),
              ElementsAre("adapter.layers| adapter.layers is for a list of names in "
                          "adapter.targets, as in PEFT, and adapter.targets is \"all-linear\": "
                          "give a list such as [\"q_proj\", \"v_proj\"], or write the layers into "
                          "the pattern"));
  config.adapter.targets = {.names = {"q_proj"}};
  config.adapter.rank_pattern = {"q_proj=2", "v_proj=0", "=3"};
  config.adapter.alpha_pattern = {"q_proj=0.5", "v_proj"};
  EXPECT_THAT(faults_of(config),
              ElementsAre("adapter.rank_pattern| adapter.rank_pattern: \"v_proj=0\" is no "
                          "PATTERN=NUMBER with a whole number above 0, for example \"q_proj=16\"",
                          "adapter.rank_pattern| adapter.rank_pattern: \"=3\" is no "
                          "PATTERN=NUMBER with a whole number above 0, for example \"q_proj=16\"",
                          "adapter.alpha_pattern| adapter.alpha_pattern: \"v_proj\" is no "
                          "PATTERN=NUMBER with a number above 0, for example \"q_proj=16\""));
  config.adapter = {.kind = AdapterKind::Lora};
  config.model.init = Init::Random;
  config.model.trainable = {"lm_head.weight"};
  EXPECT_THAT(faults_of(config),
              ::testing::Contains(HasSubstr("an adapter is trained beside given weights")));
  EXPECT_THAT(faults_of(config),
              ::testing::Contains(HasSubstr("adapter.modules_to_save, in place")));
  config.model = complete().model;
  config.model.init = Init::Random;
  config.model.quantize = Quantize::Q8_0;
  config.adapter = {};
  EXPECT_THAT(faults_of(config),
              ElementsAre(HasSubstr("model.quantize holds given weights, which stay frozen")));
  config.model = complete().model;
  config.adapter = {.kind = AdapterKind::Lora, .targets = {}};
  EXPECT_THAT(faults_of(config), ElementsAre(HasSubstr("adapter.targets is empty")));
}

}  // namespace
}  // namespace llm::config
