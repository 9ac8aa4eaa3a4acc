// What breaks the rule of chat data in a sample fails `labels`, with where and what to try.

#include "llm/check/chat_labels.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "llm/check/data_checks.h"
#include "tests/llm/check/checked_data.h"
#include "tests/support/samples_in_memory.h"
#include "tests/support/temp_folder.h"

namespace llm::check {
namespace {

using testing::HasSubstr;
using testing::Not;

class ChatLabels : public testing::Test, protected CheckedData {
 protected:
  ChatLabels() {
    config.data.train = {{.path = SHERD_TEST_SOURCE_DIR "/recipes/data/dialogues.jsonl",
                          .format = config::DataFormat::Chat}};
    config.data.chat_template = SHERD_TEST_SOURCE_DIR "/tests/data/chat/templates/zephyr.jinja";
    config.data.max_length = 512;
    load();
  }
  void load() {
    data = setup::load_run_data(config, *tokenizer, *shape, world_,
                                [](const std::string& /*line*/) {});
  }
  [[nodiscard]] CheckItem checked() { return labels(data, config, *tokenizer, world_); }
  // After a change of one sample: change(sample, begin and end of its first answer).
  template <class Change>
  CheckItem changed(std::size_t number, const Change& change) {
    std::vector<text::LabelledPrompt> prompts;
    for (std::size_t i = 0; i < data.training.size(); ++i) {
      const inputs::Sample sample = data.training[i];
      prompts.push_back({{sample.ids.begin(), sample.ids.end()},
                         {sample.supervised.begin(), sample.supervised.end()}});
    }
    text::LabelledPrompt& prompt = prompts.at(number);
    const auto begin = std::find(prompt.supervised.begin(), prompt.supervised.end(), 1);
    const auto end = std::find(begin, prompt.supervised.end(), 0);
    change(prompt, static_cast<std::size_t>(begin - prompt.supervised.begin()),
           static_cast<std::size_t>(end - prompt.supervised.begin()));
    data.training = inputs::samples_in_memory(prompts);
    return checked();
  }

  sherd::World world_ = sherd::World::alone();
};

TEST_F(ChatLabels, PassWhereEachAnswerIsThatOfItsPrompt) {
  const CheckItem item = checked();
  EXPECT_TRUE(item.ok) << item.message;
  EXPECT_THAT(item.message, Not(HasSubstr("what is supervised of 0 samples")));
}

TEST_F(ChatLabels, PassWhereConversationsAreUnrolledSeenMoreThanOnceAndCut) {
  config.data.train[0].weight = 1.5;
  config.data.max_length = 60;
  config.data.on_bad_sample = config::OnBadSample::Skip;
  config.data.max_bad_samples = 20;
  load();
  bool has_cut = false;
  for (std::size_t i = 0; i < data.training.size(); ++i) {
    has_cut = has_cut || data.training[i].cut.answer_tokens > 0;
  }
  EXPECT_TRUE(has_cut);
  const CheckItem item = checked();
  EXPECT_TRUE(item.ok) << item.message;
}

// A prompt and a completion that are messages: a conversation too.
TEST_F(ChatLabels, HoldForMessagesInPromptAndCompletion) {
  const sherd::test::TempFolder folder;
  const std::string record = R"({"prompt": [{"role": "user", "content": "Who is it?"}], )"
                             R"("completion": [{"role": "assistant", "content": "It is Lily."}]})";
  config.data.train[0] = {.path = folder.write("a.jsonl", record + "\n" + record).string(),
                          .format = config::DataFormat::PromptCompletion};
  load();
  EXPECT_TRUE(data.learns_conversations());
  EXPECT_TRUE(checked().ok) << checked().message;
  const CheckItem item = changed(1, [](text::LabelledPrompt& sample, auto, std::size_t end) {
    sample.supervised[end - 1] = 0;
  });
  EXPECT_FALSE(item.ok);
  EXPECT_THAT(item.message, HasSubstr("does not end with a token that stops generation"));
}

TEST_F(ChatLabels, FailWhereThePromptIsNotThatOfGeneration) {
  const CheckItem item = changed(3, [](text::LabelledPrompt& sample, std::size_t begin, auto) {
    sample.ids[begin - 2] = sample.ids[begin - 2] == 300 ? 301 : 300;
  });
  EXPECT_FALSE(item.ok);
  EXPECT_EQ(item.measured, 1);
  EXPECT_THAT(item.message, HasSubstr("; sample 3: line "));
  EXPECT_THAT(item.message, HasSubstr("the ids before an answer are \""));
  EXPECT_THAT(item.message, HasSubstr("and `sherd generate` would build \""));
  EXPECT_THAT(item.message, HasSubstr("set data.cache = \"none\""));
}

TEST_F(ChatLabels, FailWhereAnAnswerDoesNotStop) {
  const CheckItem item = changed(2, [](text::LabelledPrompt& sample, auto, std::size_t end) {
    sample.supervised[end - 1] = 0;
  });
  EXPECT_FALSE(item.ok);
  EXPECT_THAT(item.message, HasSubstr("does not end with a token that stops generation: name a "
                                      "data.chat_template whose answers end with one"));
}

TEST_F(ChatLabels, FailWhereATokenBeforeAnAnswerIsLearned) {
  const CheckItem item = changed(1, [](text::LabelledPrompt& sample, std::size_t begin, auto) {
    sample.supervised[begin - 1] = 1;
  });
  EXPECT_FALSE(item.ok);
  EXPECT_THAT(item.message, HasSubstr("the ids before an answer are \""));
}

TEST_F(ChatLabels, FailWhereAnotherTextIsLearned) {
  const CheckItem item = changed(0, [](text::LabelledPrompt& sample, std::size_t begin, auto) {
    sample.ids[begin] = sample.ids[begin] == 300 ? 301 : 300;
  });
  EXPECT_FALSE(item.ok);
  EXPECT_THAT(item.message, HasSubstr("; sample 0: line 1: message "));
  EXPECT_THAT(item.message, HasSubstr(" is learned, and the answer is \""));
}

TEST_F(ChatLabels, FailWhereNothingIsLearned) {
  const CheckItem item = changed(0, [](text::LabelledPrompt& sample, auto, auto) {
    std::fill(sample.supervised.begin(), sample.supervised.end(), std::uint8_t{0});
  });
  EXPECT_FALSE(item.ok);
  EXPECT_THAT(item.message, HasSubstr("nothing of the sample is learned"));
}

}  // namespace
}  // namespace llm::check
