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

// The model has no template of its own.
TEST_F(Generate, TakesTheTemplateOfAFlag) {
  const fs::path file = folder_.write("mine.jinja", "{{ bos_token }}{{ messages[0].content }} dog");
  const Arguments verb = kGenerate + Arguments{"--prompt", "The"};
  const Ended chat = expect_code(0, verb + Arguments{"--template", file});
  EXPECT_EQ(chat.out, expected_[3] + "\n");
  EXPECT_THAT(chat.err, HasSubstr("prompts get the chat template of " + file.string()));
  const Ended named = expect_code(0, verb + Arguments{"--template", "zephyr"});
  EXPECT_THAT(named.err, HasSubstr("prompts get the chat template of zephyr"));
  EXPECT_NE(named.out, chat.out);
}

// A run on conversations is asked in its own template, which its model's folder need not have.
TEST_F(Generate, AsksARunOnConversationsInItsTemplate) {
  const fs::path data =
      folder_.write("chat.jsonl", json{{"messages",
                                        {{{"role", "user"}, {"content", "Who is it?"}},
                                         {{"role", "assistant"}, {"content", "It is Lily."}}}}}
                                      .dump());
  const fs::path output = folder_.path() / "run";
  expect_code(0, train_on(data, output, "60", "1") +
                     Arguments{"--data.chat_template", "zephyr", "--optim.lr", "3e-3"});
  const Arguments prompt = {"--prompt", "Who is it?", "--max-new-tokens", "20"};
  const Ended ended = expect_code(0, Arguments{"generate", output} + prompt);
  EXPECT_EQ(ended.out, "It is Lily.\n");
  EXPECT_THAT(ended.err, HasSubstr("prompts get the chat template of zephyr"));
  EXPECT_NE(expect_code(0, Arguments{"generate", output, "--raw"} + prompt).out, ended.out);
  const auto scored = json::parse(expect_code(0, {"eval", output, "--data", data, "--json"}).out);
  EXPECT_EQ(scored["em"], 100.0);  // of the first answer
}

// The file of the template is another one since, or gone.
TEST_F(Generate, AndEvaluationKeepToTheTemplateThatARunHasLearned) {
  const fs::path file = folder_.write(
      "mine.jinja", read_file(SHERD_TEST_SOURCE_DIR "/tests/data/chat/templates/zephyr.jinja"));
  const json asks = json::array({{{"role", "user"}, {"content", "Who is it?"}}});
  const json answers = json::array({{{"role", "assistant"}, {"content", "It is Lily."}}});
  const fs::path data =
      folder_.write("pair.jsonl", json{{"prompt", asks}, {"completion", answers}}.dump());
  const fs::path output = folder_.path() / "run";
  expect_code(
      0, train_on(data, output, "1", "1") + Arguments{"--data.chat_template", file, "--data.eval",
                                                      data, "--eval.generate", "false"});
  const Arguments eval = {"eval", output, "--loss-only", "--json"};
  const Arguments generate = {"generate",         output, "--prompt", "Who is it?",
                              "--max-new-tokens", "9"};
  const auto loss = json::parse(expect_code(0, eval).out).at("loss");
  const std::string answer = expect_code(0, generate).out;
  folder_.write("mine.jinja", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
  EXPECT_EQ(json::parse(expect_code(0, eval).out).at("loss"), loss);
  EXPECT_EQ(expect_code(0, generate).out, answer);
  fs::remove(file);
  EXPECT_EQ(json::parse(expect_code(0, eval).out).at("loss"), loss);
  EXPECT_EQ(expect_code(0, generate).out, answer);
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
  refuse(64, {kModel, "--chat", "--prompt", "a"}, "--template with a Jinja file or one of chatml");
  refuse(64, {kModel, "--chat", "--raw", "--prompt", "a"}, "--raw");
  refuse(64, {kModel, "--template", "zephyr", "--raw", "--prompt", "a"}, "--raw");
  refuse(66, {kModel, "--template", "/no/file", "--prompt", "a"},
         "--template: \"/no/file\" is neither a file nor a named template");
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
