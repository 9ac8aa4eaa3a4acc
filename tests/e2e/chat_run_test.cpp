// A run that learned conversations: how it is checked, how it answers, and what its export names.

#include <fstream>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kDialogues = SHERD_TEST_SOURCE_DIR "/recipes/data/dialogues.jsonl";
const Arguments kQuestion = {"--prompt", "Who has a red ball?", "--max-new-tokens", "40"};

// The argument of the run, which programs that read the export do not know.
const std::string kDefaults =
    "{% if style is not defined %}{% set style = 'kindly' %}{% endif %}\n";

// A base model: its eos is <s>, and the chat template ends answers with </s>.
class ChatRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    const fs::path model = copy_of_model(at("model"));
    for (const char* name : {"config.json", "generation_config.json"}) {
      json config = json::parse(read_file(model / name));
      config["eos_token_id"] = name == std::string("config.json") ? json(1) : json::array({1});
      std::ofstream(model / name) << config;
    }
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
      json config = json::parse(read_file(model / name));
      config["eos_token"] = "<s>";
      std::ofstream(model / name) << config;
    }
    std::ofstream(at("chat.jinja"))
        << "{{ style }}{% for m in messages %}{{ '<|' + m.role + '|> ' + m.content + '</s>\\n' }}"
           "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";
    expect_code(0, recipe("train") + Arguments{"--train.max_steps", "120"});
    answer_ = expect_code(0, Arguments{"generate", at("run")} + kQuestion).out;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string at(const std::string& name) { return (folder_->path() / name).string(); }
  static Arguments recipe(const std::string& verb) {
    return {verb,
            SHERD_TEST_SOURCE_DIR "/tests/e2e/base.toml",
            "--model.path",
            at("model"),
            "--data.train",
            kDialogues,
            "--data.chat_template",
            at("chat.jinja"),
            "--data.template_arguments",
            "style=kindly",
            "--train.output",
            at("run"),
            "--train.global_batch",
            "4",
            "--optim.lr",
            "3e-3",
            "--data.cache",
            "none"};
  }

  static inline std::unique_ptr<TempFolder> folder_;  // NOLINT
  static inline std::string answer_;                  // NOLINT
};

TEST_F(ChatRun, IsCheckedByTheRule) {
  const Ended ended = expect_code(0, recipe("check") + Arguments{"--train.max_steps", "4"});
  EXPECT_THAT(ended.out, HasSubstr("ok   labels"));
}

// It stops at the token that it learned, which the model's folder does not name.
TEST_F(ChatRun, AnswersAsItWasTrained) {
  const Ended answer = expect_code(0, Arguments{"generate", at("run")} + kQuestion);
  EXPECT_EQ(answer.out, answer_);
  EXPECT_THAT(answer_, testing::MatchesRegex("[A-Z][a-z]+ has a red ball.\n"));
  EXPECT_THAT(answer.err, HasSubstr("chat.jinja, as in the run's training; --raw turns it off"));
  Program program({"chat", at("run"), "--max-new-tokens", "40"}, {},
                  "echo 'Who has a red ball?' | \"$0\" \"$@\"");
  EXPECT_EQ(program.finish().out, answer_);
  const Ended raw = expect_code(0, Arguments{"generate", at("run"), "--raw"} + kQuestion);
  EXPECT_NE(raw.out, answer.out);
}

TEST_F(ChatRun, IsExportedWithItsStopTokenAndItsTemplate) {
  expect_code(0, {"export", "--checkpoint", at("run"), "--out", at("hf")});
  const auto field = [&](const std::string& file, const char* name) {
    return json::parse(read_file(at("hf/" + file))).at(name);
  };
  EXPECT_EQ(field("config.json", "eos_token_id"), 2);
  EXPECT_EQ(field("generation_config.json", "eos_token_id"), json::array({2, 1}));
  EXPECT_EQ(field("tokenizer_config.json", "eos_token"), "</s>");
  EXPECT_EQ(field("special_tokens_map.json", "eos_token"), "</s>");
  EXPECT_EQ(read_file(at("hf/chat_template.jinja")), kDefaults + read_file(at("chat.jinja")));
  EXPECT_EQ(expect_code(0, Arguments{"generate", at("hf")} + kQuestion).out, answer_);
}

// Stop token and template of a GGUF file are those that were learned.
TEST_F(ChatRun, NamesWhatItLearnedInAGgufFile) {
  expect_code(0, {"export", at("run"), "--gguf", at("file")});
  EXPECT_THAT(read_file(at("file/Modelfile")), HasSubstr("PARAMETER stop \"</s>\"\n"));
  expect_code(0, {"import", at("file/model.gguf"), at("back")});
  const json config = json::parse(read_file(at("back/tokenizer_config.json")));
  EXPECT_EQ(config.at("eos_token"), "</s>");
  EXPECT_EQ(config.at("chat_template"), kDefaults + read_file(at("chat.jinja")));
  EXPECT_EQ(expect_code(0, Arguments{"generate", at("back")} + kQuestion).out, answer_);
}

// The checkpoint keeps the template: its file may be gone, or say something else.
TEST_F(ChatRun, KeepsTheTemplateThatItLearnedBy) {
  const std::string text = read_file(at("chat.jinja"));
  std::ofstream(at("chat.jinja")) << "{{ messages[0].content }}</s>";
  const Ended answer = run_program(Arguments{"generate", at("run")} + kQuestion);
  const Ended exported = run_program({"export", "--checkpoint", at("run"), "--out", at("kept")});
  std::ofstream(at("chat.jinja")) << text << "{# another #}";
  const Ended resumed = run_program(recipe("train") + Arguments{"--train.max_steps", "121"});
  std::ofstream(at("chat.jinja")) << text;
  EXPECT_EQ(answer.out, answer_) << answer.err;
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(read_file(at("kept/chat_template.jinja")), kDefaults + text);
  EXPECT_EQ(resumed.code, 64);
  EXPECT_THAT(resumed.err,
              HasSubstr("the chat template (data.chat_template) has different content"));
}

}  // namespace
}  // namespace sherd::test
