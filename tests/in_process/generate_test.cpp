// `sherd generate`: what a model makes of prompts.

#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string continued(const std::string& prompt) {
  const Ended ended = expect_code(0, kGenerate + Arguments{"--prompt", prompt});
  EXPECT_TRUE(ended.out.ends_with('\n'));
  return ended.out.substr(0, ended.out.size() - 1);
}

class Generate : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    expected_.clear();
    for (const std::string& prompt : kPrompts) {
      expected_.push_back(continued(prompt));
    }
  }
  TempFolder folder_;
  static inline std::vector<std::string> expected_;  // NOLINT
};

TEST_F(Generate, ContinuesAPromptInTheModelsWords) {
  EXPECT_THAT(expected_.front(), HasSubstr("there was a little"));
}

TEST_F(Generate, OfAFileGivesWhatEachPromptGivesAlone) {
  const Ended ended =
      expect_code(0, kGenerate + Arguments{"--prompts", prompts_file(folder_), "--batch", "3"});
  EXPECT_EQ(completions(ended.out), expected_);
}

TEST_F(Generate, ContinuesWhatARunHasLearned) {
  const fs::path output = folder_.path() / "run";
  expect_code(0, train(output, "1"));
  const Ended ended =
      expect_code(0, {"generate", output, "--prompt", "Tom", "--max-new-tokens", "3"});
  EXPECT_NE(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr("checkpoint " + output.string()));
}

// A template that says nothing but the message with what goes before it.
TEST_F(Generate, WritesPromptsAsTheModelsTemplateSays) {
  const fs::path model = copy_of_model(folder_.path() / "model");
  auto config = json::parse(read_file(model / "tokenizer_config.json"));
  config["chat_template"] = "{{ bos_token }}{{ messages[0].content }} dog";
  std::ofstream(model / "tokenizer_config.json") << config;
  const Arguments verb = {"generate", model, "--max-new-tokens", "12", "--prompt", "The"};
  const Ended chat = expect_code(0, verb);
  EXPECT_EQ(chat.out, expected_[3] + "\n");
  EXPECT_THAT(chat.err, HasSubstr("--raw turns it off"));
  EXPECT_EQ(expect_code(0, verb + Arguments{"--chat"}).out, chat.out);
  const Ended raw = expect_code(0, verb + Arguments{"--raw"});
  EXPECT_NE(raw.out, chat.out);
  EXPECT_EQ(raw.out, continued("The") + "\n");
}

// `sherd train` writes nothing around a prompt, whatever template the model has.
TEST_F(Generate, ContinuesPromptsOfARunAsItWasTrained) {
  const fs::path model = copy_of_model(folder_.path() / "model");
  auto config = json::parse(read_file(model / "tokenizer_config.json"));
  config["chat_template"] = "{{ bos_token }}{{ messages[0].content }} dog";
  std::ofstream(model / "tokenizer_config.json") << config;
  const fs::path output = folder_.path() / "run";
  Arguments run = train(output, "1");
  std::replace(run.begin(), run.end(), kModel, model.string());
  expect_code(0, run);
  const auto continued_by = [&](const std::string& prompt, const Arguments& flags = {}) {
    return expect_code(
        0, Arguments{"generate", output, "--max-new-tokens", "12", "--prompt", prompt} + flags);
  };
  const Ended as_trained = continued_by("The");
  EXPECT_THAT(as_trained.err, HasSubstr("as in the run's training; --chat applies"));
  EXPECT_EQ(continued_by("The", {"--raw"}).out, as_trained.out);
  EXPECT_EQ(continued_by("The ").out, as_trained.out);  // the blank belongs to what follows
  EXPECT_EQ(continued_by("The dog").out, continued_by("The", {"--chat"}).out);
  EXPECT_NE(continued_by("The dog").out, as_trained.out);
}

// Of prompts, whatever their order, batch and number.
TEST_F(Generate, DrawsTheSameTokensForASeed) {
  const Arguments drawn =
      kGenerate + Arguments{"--temperature", "1.5", "--top-p", "0.95", "--top-k", "200"};
  const auto of_seed = [&](const std::string& seed, const std::string& batch) {
    return completions(expect_code(0, drawn + Arguments{"--prompts", prompts_file(folder_),
                                                        "--batch", batch, "--seed", seed})
                           .out);
  };
  const auto first = of_seed("7", "8");
  EXPECT_EQ(of_seed("7", "2"), first);
  EXPECT_NE(of_seed("8", "8"), first);
  EXPECT_NE(first, expected_);
  const Ended alone =
      expect_code(0, drawn + Arguments{"--prompt", kPrompts.front(), "--seed", "7"});
  EXPECT_EQ(alone.out, first.front() + "\n");
}

TEST_F(Generate, TakesTheLikeliestTokenAtTemperatureZero) {
  const Arguments likeliest = {"--temperature", "0", "--seed", "3"};
  EXPECT_EQ(completions(expect_code(0, kGenerate + Arguments{"--prompts", prompts_file(folder_)} +
                                           likeliest)
                            .out),
            expected_);
  const Ended only_one =
      expect_code(0, kGenerate + Arguments{"--prompts", prompts_file(folder_), "--temperature", "1",
                                           "--top-k", "1"});
  EXPECT_EQ(completions(only_one.out), expected_);
}

TEST_F(Generate, SaysWhatIsWrong) {
  const auto refuse = [](int code, const Arguments& flags, const std::string& part) {
    const Ended ended = expect_code(code, Arguments{"generate"} + flags);
    EXPECT_THAT(ended.err, HasSubstr(part));
    EXPECT_EQ(ended.out, "");
  };
  refuse(64, {}, "model is required");
  refuse(64, {kModel, "--chat", "--prompt", "a"}, "has no chat template");
  refuse(64, {kModel, "--chat", "--raw", "--prompt", "a"}, "--raw");
  refuse(64, {kModel, "--prompt", "a", "--prompts", "b.txt"}, "--prompts");
  refuse(64, {kModel, "--prompt", "a", "--top-p", "0.5"}, "--top-p requires --temperature");
  refuse(64, {kModel, "--prompt", "a", "--seed", "5"}, "--seed requires --temperature");
  refuse(64, {kModel, "--prompt", "a", "--temperature", "-1"}, "must be a number of at least 0");
  refuse(64, {kModel, "--prompt", "a", "--temperature", "1", "--top-p", "1.5"},
         "1.5 must be a number from 0 to 1");
  refuse(64, {kModel, "--prompt", "a", "--temperature", "1", "--top-k", "-2"}, "--top-k");
  refuse(66, {kModel, "--prompts", "/no/p.txt"}, "/no/p.txt");
  refuse(65, {kModel, "--prompt", "a", "--max-new-tokens", "600"},
         "--prompt: 2 tokens and --max-new-tokens 600 are more than the model's context of 512");
  refuse(66, {"/no/model", "--prompt", "a"}, "does not exist");
  refuse(73, {kModel, "--prompt", "a", "-o", "/no/folder/out.jsonl", "--max-new-tokens", "1"},
         "/no/folder/out.jsonl");
}

}  // namespace
}  // namespace sherd::test
