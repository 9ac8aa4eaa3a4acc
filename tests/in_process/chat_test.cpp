// `sherd chat`: lines of standard input and a model's answers.

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include <sys/mman.h>
#include <unistd.h>

#include "llm/text/tokenizer.h"
#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// A text as standard input.
class Typed {
 public:
  explicit Typed(const std::string& text)
      : before_(::dup(STDIN_FILENO)), file_(::memfd_create("typed", MFD_CLOEXEC)) {
    if (before_ < 0 || ::write(file_, text.data(), text.size()) != std::ssize(text) ||
        ::lseek(file_, 0, SEEK_SET) != 0 || ::dup2(file_, STDIN_FILENO) < 0) {
      throw std::runtime_error("standard input cannot be replaced");
    }
  }
  ~Typed() {
    ::dup2(before_, STDIN_FILENO);
    ::close(before_);
    ::close(file_);
  }
  Typed(const Typed&) = delete;
  Typed& operator=(const Typed&) = delete;

 private:
  int before_;
  int file_;
};

// Each message without its role: the model continues stories.
const std::string kTemplate =
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}"
    "{% endif %}{{ m.content }}{% if not loop.last %} {% endif %}{% endfor %}";

class Chat : public testing::Test {
 protected:
  fs::path model_with(const std::string& chat_template) {
    const fs::path model = copy_of_model(folder_.path() / "model");
    std::ofstream(model / "chat_template.jinja") << chat_template;
    return model;
  }
  // What is written for typed lines.
  Ended chat(const std::string& lines, const Arguments& flags = {}, int code = 0) {
    const Typed typed(lines);
    return expect_code(code, Arguments{"chat", model_, "--max-new-tokens", most_tokens_} + flags);
  }
  std::string continued(const std::string& prompt) {
    return expect_code(0,
                       {"generate", model_, "--raw", "--max-new-tokens", "12", "--prompt", prompt})
        .out;
  }

  TempFolder folder_;
  std::string most_tokens_ = "12";
  std::string model_ = model_with(kTemplate);
};

TEST_F(Chat, AnswersTheWholeConversation) {
  const std::string first = continued("Tom");
  const std::string second = continued("Tom " + first.substr(0, first.size() - 1) + " The dog");
  const Ended ended = chat("Tom\n\n  \nThe dog\n");
  EXPECT_EQ(ended.out, first + second);
  EXPECT_THAT(ended.err, HasSubstr("The answer ends here, after --max-new-tokens 12."));
  EXPECT_THAT(ended.err, Not(HasSubstr("> ")));  // no terminal
}

TEST_F(Chat, TakesALastLineWithoutItsEnd) {
  EXPECT_EQ(chat("Tom\r\nThe dog").out, chat("Tom\nThe dog\n").out);
  EXPECT_EQ(chat("").out, "");
}

TEST_F(Chat, ForgetsOnReset) {
  const std::string dog = continued("The dog");
  EXPECT_EQ(chat("Tom\n/reset\nThe dog\n").out, continued("Tom") + dog);
  EXPECT_EQ(chat("The dog\n/reset\nThe dog\n").out, dog + dog);
}

TEST_F(Chat, BeginsWithTheSystemMessage) {
  const std::string expected = continued("One day, a little Tom");
  EXPECT_EQ(chat("Tom\n", {"--system", "One day, a little"}).out, expected);
  EXPECT_EQ(chat("/system One day, a little\nTom\n/reset\nTom\n").out, expected + expected);
  EXPECT_EQ(chat("/system One day, a little\n/system\nTom\n").out, continued("Tom"));
}

TEST_F(Chat, KnowsItsCommands) {
  const Ended ended = chat("/help\n/jump now\n /jump\n/exit\nTom\n");
  EXPECT_THAT(ended.err, HasSubstr("/system TEXT  set the system message"));
  EXPECT_THAT(ended.err, HasSubstr("/jump is no command"));
  EXPECT_EQ(ended.out, continued("/jump"));  // and nothing after /exit
}

TEST_F(Chat, DrawsTheSameTokensForASeed) {
  const auto drawn = [&](const std::string& seed) {
    return chat("Tom\n/reset\nTom\n", {"--temperature", "1.5", "--seed", seed}).out;
  };
  const std::string first = drawn("1");
  EXPECT_EQ(drawn("1"), first);
  EXPECT_NE(drawn("2"), first);
  EXPECT_NE(first, continued("Tom") + continued("Tom"));
}

TEST_F(Chat, StopsAtTheTokensOfTheGenerationConfig) {
  const std::string answer = chat("Once upon a time\n").out;
  const auto tokenizer = llm::text::Tokenizer::from_folder(model_);
  // The fourth token of the answer stops it.
  const auto ids = tokenizer.encode("Once upon a time" + answer, llm::text::SpecialTokens::Leave);
  const auto prompt = tokenizer.encode("Once upon a time", llm::text::SpecialTokens::Leave);
  const auto stop = ids.ids.at(prompt.ids.size() + 3);
  std::ofstream(fs::path(model_) / "generation_config.json") << json{{"eos_token_id", {2, stop}}};
  const Ended ended = chat("Once upon a time\n");
  EXPECT_LT(ended.out.size(), answer.size());
  EXPECT_TRUE(answer.starts_with(ended.out.substr(0, ended.out.size() - 1)));
  EXPECT_THAT(ended.err, Not(HasSubstr("The answer ends here")));
}

// 512 tokens.
TEST_F(Chat, TellsWhenTheContextIsFull) {
  const std::string story(1500, 'z');
  const Ended full = chat(story + "\nTom\n");
  EXPECT_THAT(full.err, HasSubstr("and the model's context holds 512. The message is taken back"));
  EXPECT_EQ(full.out, continued("Tom"));
  most_tokens_ = "4000";
  const Ended ends = chat("Tom\n");
  EXPECT_THAT(ends.err, testing::AnyOf(HasSubstr("the model's context of 512 tokens is full"),
                                       Not(HasSubstr("The answer ends here"))));
}

TEST_F(Chat, TakesAMessageBackThatCannotBeRead) {
  const Ended ended = chat("Tom \xFF\nTom\n");
  EXPECT_THAT(ended.err, HasSubstr("the message is not UTF-8 at byte 4"));
  EXPECT_EQ(ended.out, continued("Tom"));
  const Ended endless = chat(std::string((1U << 20U) + 9, 'a') + "\nTom\n");
  EXPECT_THAT(endless.err, HasSubstr("more than 1 MiB"));
  EXPECT_EQ(endless.out, continued("Tom"));
}

TEST_F(Chat, TakesAMessageBackThatTheTemplateRefuses) {
  model_ = folder_.path() / "strict";
  fs::copy(folder_.path() / "model", model_);
  std::ofstream(fs::path(model_) / "chat_template.jinja")
      << "{% if messages[0].role == 'system' %}{{ raise_exception('no system message') }}"
         "{% endif %}{{ bos_token }}{{ messages[0].content }}";
  const Ended ended = chat("/system Be brief.\nTom\n/system\nTom\n");
  EXPECT_THAT(ended.err, HasSubstr("no system message"));
  EXPECT_EQ(ended.out, continued("Tom"));
}

// The model has no template of its own.
TEST_F(Chat, TakesTheTemplateOfAFlag) {
  const std::string expected = chat("Tom\nThe dog\n").out;
  const fs::path file = folder_.write("mine.jinja", kTemplate);
  model_ = kModel;
  EXPECT_EQ(chat("Tom\nThe dog\n", {"--template", file}).out, expected);
  EXPECT_EQ(chat("Tom\n", {"--template", "zephyr"}).out,
            expect_code(0, {"generate", kModel, "--template", "zephyr", "--max-new-tokens", "12",
                            "--prompt", "Tom"})
                .out);
}

// The base has neither a template nor the stop token that was learned: both are in the export, as
// is what stops the base.
TEST_F(Chat, WithAnAdapterIsThatOfItsRun) {
  model_ = copy_of_model(folder_.path() / "base");
  for (const char* name : {"config.json", "generation_config.json", "tokenizer_config.json",
                           "special_tokens_map.json"}) {
    json config = json::parse(read_file(fs::path(model_) / name));
    const bool has_id = config.contains("eos_token_id");
    config[has_id ? "eos_token_id" : "eos_token"] = has_id ? json(1) : json("<s>");
    std::ofstream(fs::path(model_) / name) << config;
  }
  const auto message = [](const char* role, const char* content) {
    return json{{"role", role}, {"content", content}};
  };
  const json record = {{"messages", json::array({message("user", "Who is it?"),
                                                 message("assistant", "It is Lily.")})}};
  const fs::path data = folder_.write("chat.jsonl", record.dump() + "\n" + record.dump()),
                 file = folder_.write("chat.jinja",
                                      "{% for m in messages %}{{ '<|' + m.role + '|> ' + m.content "
                                      "+ '</s>\n' }}{% endfor %}{% if add_generation_prompt %}"
                                      "{{ '<|assistant|>' }}{% endif %}"),
                 output = folder_.path() / "run";
  Arguments run = train_on(data, output, "60");
  std::replace(run.begin(), run.end(), kModel, model_);
  expect_code(0, run + Arguments{"--data.chat_template", file, "--adapter.kind", "lora",
                                 "--adapter.modules_to_save", "embed_tokens", "--optim.lr", "5e-3",
                                 "--checkpoint.export", "end"});
  model_ = output;
  most_tokens_ = "20";
  const Ended of_run = chat("Who is it?\n");
  EXPECT_EQ(of_run.out, "It is Lily.\n");
  model_ = output / "export";
  const Ended exported = chat("Who is it?\n");
  EXPECT_EQ(exported.out, of_run.out);
  EXPECT_THAT(exported.err, Not(HasSubstr("The answer ends here")));
}

TEST_F(Chat, SaysWhatIsWrong) {
  const auto refuse = [](int code, const Arguments& flags, const std::string& part) {
    const Typed typed("Tom\n");
    const Ended ended = expect_code(code, Arguments{"chat"} + flags);
    EXPECT_THAT(ended.err, HasSubstr(part));
    EXPECT_EQ(ended.out, "");
  };
  refuse(64, {}, "model is required");
  refuse(66, {"/no/model"}, "does not exist");
  refuse(65, {kModel}, "has no chat template");
  refuse(65, {kModel},
         "--template with a Jinja file or one of chatml, llama2, llama3, mistral, gemma, zephyr, "
         "alpaca");
  refuse(66, {kModel, "--template", "chatlm"},
         "--template: \"chatlm\" is neither a file nor a named template: chatml, llama2");
  refuse(64, {model_, "--top-p", "0.5"}, "--top-p requires --temperature");
  refuse(64, {model_, "--max-new-tokens", "0"}, "--max-new-tokens");
}

}  // namespace
}  // namespace sherd::test
