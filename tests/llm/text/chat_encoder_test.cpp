#include "llm/text/chat_encoder.h"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/text/chosen_template.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using nlohmann::ordered_json;
using sherd::ExitCode;
using sherd::test::expect_error;
using ::testing::HasSubstr;

std::filesystem::path stories_model() {
  return sherd::test::data_folder() / "stories260k-hf";
}

std::string template_file(const std::string& name) {
  return (sherd::test::data_folder() / "chat/templates" / (name + ".jinja")).string();
}

ChatEncoder chat_encoder(const std::string& name, ChatOptions options = {},
                         const std::filesystem::path& model = stories_model()) {
  options.now = "2026-01-01T00:00:00";
  return {Tokenizer::from_folder(model), chat_template_of(template_file(name), model).value(),
          std::move(options)};
}

ordered_json message_of(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

Conversation short_chat() {
  return {{message_of("user", "Who is it?"), message_of("assistant", "Lily"),
           message_of("user", "And now?"), message_of("assistant", "Tom")},
          nullptr};
}

std::string decoded_part(const LabelledPrompt& prompt, std::uint8_t supervised) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < prompt.ids.size(); ++i) {
    if (prompt.supervised[i] == supervised) {
      ids.push_back(prompt.ids[i]);
    }
  }
  return Tokenizer::from_folder(stories_model()).decode(ids, false);
}

// Per run of supervised tokens the ids before it.
std::vector<std::vector<TokenId>> prompts_in(const LabelledPrompt& sample) {
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < sample.ids.size(); ++i) {
    if (sample.supervised[i] == 1 && (i == 0 || sample.supervised[i - 1] == 0)) {
      prompts.emplace_back(sample.ids.begin(), sample.ids.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return prompts;
}

TEST(ChatEncoder, LearnsAnswersAndTheTokenThatStopsThem) {
  const ChatEncoder encoder = chat_encoder("zephyr");
  const auto samples = encoder.encode(short_chat(), 512);
  std::string learned;
  for (const LabelledPrompt& sample : samples) {
    learned += decoded_part(sample, 1);
    EXPECT_FALSE(sample.answer_was_cut);
  }
  EXPECT_THAT(learned, HasSubstr("Lily</s>"));
  EXPECT_THAT(learned, HasSubstr("Tom</s>"));
  EXPECT_EQ(encoder.stop_id(), 2);
}

TEST(ChatEncoder, CutsAtTheEndAndRefusesWhatLearnsNothing) {
  const ChatEncoder encoder = chat_encoder("zephyr");
  std::int64_t last_learned = 0;
  for (const LabelledPrompt& sample : encoder.encode(short_chat(), 512)) {
    const auto& marks = sample.supervised;
    const auto behind = std::find(marks.rbegin(), marks.rend(), std::uint8_t{1}).base();
    last_learned = std::max<std::int64_t>(last_learned, behind - marks.begin() - 1);
  }
  const auto cut = encoder.encode(short_chat(), last_learned);
  EXPECT_TRUE(std::any_of(cut.begin(), cut.end(), [](const auto& one) {
    return one.answer_was_cut && one.cut_answer_tokens > 0;
  }));
  expect_error([&] { static_cast<void>(encoder.encode(short_chat(), 4)); }, ExitCode::BadData,
               {"nothing that is learned lies in the first data.max_length (4) tokens"});
}

TEST(ChatEncoder, EncodesSpecialTokensOfMessagesAsTextOnRequest) {
  Conversation chat = short_chat();
  chat.messages[0]["content"] = "What is </s>?";
  expect_error([&] { static_cast<void>(chat_encoder("zephyr").encode(chat, 512)); },
               ExitCode::BadData, {"message 1: contains the special token \"</s>\""});
  const ChatEncoder encoder = chat_encoder("zephyr", {.special_tokens_as_text = true});
  const auto ends = [&](const Conversation& given) {
    const auto samples = encoder.encode(given, 512);
    return std::count(samples.back().ids.begin(), samples.back().ids.end(), 2);
  };
  EXPECT_EQ(ends(chat), ends(short_chat()));
  EXPECT_THAT(decoded_part(encoder.encode(chat, 512).front(), 0), HasSubstr("</"));
}

TEST(ChatEncoder, LearnsWhatTheTemplateMarks) {
  const ChatEncoder encoder =
      chat_encoder("chatml-generation", {.supervised = Supervised::Template});
  const auto samples = encoder.encode(short_chat(), 512);
  ASSERT_EQ(samples.size(), 1U);
  EXPECT_THAT(decoded_part(samples[0], 1), HasSubstr("Lily"));
  EXPECT_THAT(decoded_part(samples[0], 1), testing::Not(HasSubstr("Who")));
  const ChatEncoder unmarked = chat_encoder("zephyr", {.supervised = Supervised::Template});
  expect_error([&] { static_cast<void>(unmarked.encode(short_chat(), 512)); }, ExitCode::BadData,
               {"the chat template marks nothing with {% generation %}"});
}

TEST(ChatEncoder, IsKnownByWhatItsSamplesDependOn) {
  const std::string key = chat_encoder("zephyr").key();
  EXPECT_EQ(chat_encoder("zephyr").key(), key);
  EXPECT_NE(chat_encoder("llama-2").key(), key);
  EXPECT_NE(chat_encoder("zephyr", {.as_rendered = true}).key(), key);
  EXPECT_NE(chat_encoder("zephyr", {.arguments = {{"enable_thinking", false}}}).key(), key);
}

TEST(ChosenTemplate, HasTheTokensOfTheModel) {
  for (const char* name : {"chatml", "llama2", "llama3", "mistral", "gemma", "zephyr", "alpaca"}) {
    const auto chosen = chat_template_of(name, stories_model());
    ASSERT_TRUE(chosen) << name;
    EXPECT_EQ(chosen->special_tokens().value("eos_token", ""), "</s>") << name;
    EXPECT_THAT(chosen->render("Who is it?"), HasSubstr("Who is it?")) << name;
  }
}

TEST(ChosenTemplate, IsRefusedByItsName) {
  expect_error([] { static_cast<void>(chat_template_of("chatmll", stories_model())); },
               ExitCode::InputMissing,
               {"data.chat_template: \"chatmll\" is neither a file nor a named template"});
  EXPECT_THAT(advice_on_chat_template("/m"),
              HasSubstr("has no chat template, and conversations need one: set "
                        "data.chat_template"));
}

// The property behind the rule: the ids before each learned answer are those of the prompt that
// generation would be given.
void expect_prompts_of_generation(const ChatEncoder& encoder, const std::string& label) {
  std::ifstream lines(sherd::test::data_folder() / "chat/masks.jsonl");
  int learned = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto golden = ordered_json::parse(line);
    const Conversation chat{golden["messages"], golden["tools"]};
    std::vector<LabelledPrompt> samples;
    try {
      samples = encoder.encode(chat, 100000);
    } catch (const sherd::Error&) {
      continue;  // refused
    }
    std::vector<std::vector<TokenId>> prompts;
    for (std::size_t i = 1; i < chat.messages.size(); ++i) {
      try {
        const auto first = chat.messages.begin();
        prompts.push_back(encoder.encode_prompt(
            {ordered_json::array_t(first, first + static_cast<std::ptrdiff_t>(i)), chat.tools}));
      } catch (const sherd::Error&) {
        continue;  // the template does not end there
      }
    }
    for (const LabelledPrompt& sample : samples) {
      for (const auto& prompt : prompts_in(sample)) {
        EXPECT_THAT(prompts, testing::Contains(prompt)) << label << ": " << golden["conversation"];
        ++learned;
      }
    }
  }
  EXPECT_GT(learned, 20) << label;
}

TEST(ChatEncoder, IdsBeforeAnAnswerAreThoseOfGenerationsPrompt) {
  for (const char* name : {"zephyr", "llama-2"}) {
    expect_prompts_of_generation(chat_encoder(name), name);
  }
}

TEST(ChatEncoder, IdsBeforeAnAnswerAreThoseOfGenerationsPromptInSmolLm2) {
  SHERD_NEEDS_EXTRA_DATA("chat/tokenizers/smollm2/tokenizer.json");
  const auto model = *sherd::test::extra_data("chat/tokenizers/smollm2");
  for (const char* name : {"chatml", "chatml-generation"}) {
    expect_prompts_of_generation(chat_encoder(name, {}, model), name);
  }
}

}  // namespace
}  // namespace llm::text
