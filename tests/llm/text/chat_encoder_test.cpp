#include "llm/text/chat_encoder.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/text/chosen_template.h"
#include "tests/llm/text/chat_prompts.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
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
    const auto chat = chosen->render(short_chat().messages, nullptr, nlohmann::json::object(), "");
    EXPECT_THAT(chat.text, HasSubstr("Who is it?")) << name;
  }
}

TEST(ChosenTemplate, ThatTheVocabularyCannotEndIsRefusedForAllRecords) {
  const auto chosen = [](const char* name) {
    return ChatEncoder(Tokenizer::from_folder(stories_model()),
                       chat_template_of(name, stories_model()).value(), {});
  };
  for (const char* name : {"llama2", "mistral", "zephyr", "alpaca"}) {
    EXPECT_EQ(chosen(name).samples(short_chat()).size(), 1U) << name;
  }
  for (const auto& [name, end] : std::map<const char*, std::string>{
           {"chatml", "<|im_end|>"}, {"llama3", "<|eot_id|>"}, {"gemma", "<end_of_turn>"}}) {
    expect_error([&] { (void)chosen(name).samples(short_chat()); }, ExitCode::InputMissing,
                 {std::string("data.chat_template: ") + name, end,
                  "llama2, mistral, zephyr and alpaca end an answer with the model's own end token",
                  std::string(name) + " "});
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

std::vector<GoldenChat> golden_chats() {
  std::map<std::string, GoldenChat> chats;  // each once
  std::ifstream lines(sherd::test::data_folder() / "chat/masks.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto golden = ordered_json::parse(line);
    const std::string name = golden["conversation"];
    chats[name] = {name, {golden["messages"], golden["tools"]}, ordered_json::object()};
  }
  std::vector<GoldenChat> all;
  for (const auto& [name, chat] : chats) {
    all.push_back(chat);
  }
  return all;
}

// The named templates with the tokens that models of their formats have.
std::map<std::string, TemplateOfModel> named_templates(const sherd::test::TempFolder& folder) {
  const ordered_json plain = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const std::vector<std::string> plain_control = {"<s>", "</s>", "<unk>"};
  std::map<std::string, TemplateOfModel> named = {
      {"chatml", {"", {{"eos_token", "<|im_end|>"}}, {"<|im_end|>"}, {"<|im_start|>"}}},
      {"llama3",
       {"",
        {{"bos_token", "<|begin_of_text|>"}, {"eos_token", "<|eot_id|>"}},
        {"<|eot_id|>"},
        {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"}}},
      {"gemma",
       {"",
        {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}},
        {"<end_of_turn>", "<eos>"},
        {"<bos>", "<start_of_turn>"}}}};
  for (const char* name : {"llama2", "mistral", "zephyr", "alpaca"}) {
    named[name] = {"", plain, {"</s>"}, plain_control};
  }
  for (auto& [name, chat] : named) {
    chat.file = folder.path() / (name + ".jinja");
    std::ofstream(chat.file) << ChatTemplate::named(name).source();
  }
  return named;
}

// More templates and tokenizers: chat_prompts_test.cpp.
TEST(ChatEncoder, IdsBeforeAnAnswerAreThoseOfGenerationsPrompt) {
  const sherd::test::TempFolder folder;
  for (const auto& [name, chat] : named_templates(folder)) {
    PromptsOfGeneration prompts(Tokenizer::from_folder(stories_model()), chat, name);
    for (const GoldenChat& golden : golden_chats()) {
      prompts.expect_prompts(golden);
    }
    EXPECT_GT(prompts.answers(), 10) << name;
  }
}

// What stops generation is what the model's folder names, and of a base model what the template
// puts behind an answer.
TEST(ChatEncoder, LearnsTheStopTokenOfTheFolderElseThatOfTheTemplate) {
  const auto stop_of = [&](const std::vector<std::string>& stop_tokens,
                           const std::vector<std::string>& control_tokens) {
    const ChatModelFolder model(Tokenizer::from_folder(stories_model()),
                                {"", {{"eos_token", "</s>"}}, stop_tokens, control_tokens});
    const ChatEncoder encoder = chat_encoder("chatml", {}, model.path());
    const Tokenizer tokenizer = Tokenizer::from_folder(model.path());
    EXPECT_THAT(encoder.stop_ids(), testing::Contains(encoder.stop_id().value()));
    const TokenId stop = encoder.stop_id().value();
    return tokenizer.decode(std::span(&stop, 1), false);
  };
  EXPECT_EQ(stop_of({"</s>"}, {"<|im_start|>", "<|im_end|>"}), "<|im_end|>");
  EXPECT_EQ(stop_of({"</s>", "<|im_end|>"}, {"<|im_start|>"}), "<|im_end|>");
  // Generation goes on behind a special token that the folder does not name.
  const sherd::test::TempFolder written;
  std::ofstream(written.path() / "two.jinja")
      << "{% for m in messages %}{{ m.content }}<|end|></s>{% endfor %}";
  const ChatModelFolder model(Tokenizer::from_folder(stories_model()),
                              {"", {{"eos_token", "</s>"}}, {"</s>"}, {"<|end|>"}});
  const ChatEncoder two(Tokenizer::from_folder(model.path()),
                        ChatTemplate::from_file(written.path() / "two.jinja"), {});
  EXPECT_EQ(two.stop_id(), 2);
}

TEST(ChatEncoder, NeedsATokenThatStopsGeneration) {
  const sherd::test::TempFolder folder;
  std::filesystem::copy(stories_model() / "tokenizer.json", folder.path() / "tokenizer.json");
  std::ofstream(folder.path() / "plain.jinja")
      << "{% for m in messages %}{{ m.content }}{% endfor %}";
  const ChatEncoder encoder(Tokenizer::from_folder(folder.path()),
                            ChatTemplate::from_file(folder.path() / "plain.jinja"), {});
  EXPECT_FALSE(encoder.encode_prompt(short_chat()).empty());  // generation does without
  expect_error([&] { static_cast<void>(encoder.encode(short_chat(), 512)); }, ExitCode::BadData,
               {"plain.jinja: neither the chat template nor the model's folder names a token that "
                "stops generation: set eos_token in tokenizer_config.json"});
}

// Of an ordinary token the tokenizer makes others: the model would never write it.
TEST(ChatEncoder, RefusesAStopTokenThatIsJoinedToTheText) {
  const sherd::test::TempFolder folder;
  std::filesystem::copy(stories_model() / "tokenizer.json", folder.path() / "tokenizer.json");
  folder.write("tokenizer_config.json", R"({"eos_token": "e"})");
  folder.write("joined.jinja", "{% for m in messages %}{{ m.content }} the{% endfor %}");
  const Conversation chat{{message_of("user", "Who?"), message_of("assistant", "Lily")}, nullptr};
  const ChatEncoder encoder(Tokenizer::from_folder(folder.path()),
                            ChatTemplate::from_file(folder.path() / "joined.jinja"), {});
  expect_error([&] { static_cast<void>(encoder.encode(chat, 512)); }, ExitCode::BadData,
               {"the tokenizer joins the token that stops generation to the text before it",
                "Lily the", "Make it an added token of tokenizer.json"});
}

// U+FDDF is a character as others are, where it does not cut special tokens.
TEST(ChatEncoder, KeepsANoncharacterOfTheData) {
  Conversation chat = short_chat();
  chat.messages[1]["content"] = "Li\xef\xb7\x9fly";
  const auto samples = chat_encoder("zephyr").encode(chat, 512);
  EXPECT_THAT(decoded_part(samples.front(), 1), HasSubstr("Li\xef\xb7\x9fly"));
  expect_error(
      [&] {
        static_cast<void>(
            chat_encoder("zephyr", {.special_tokens_as_text = true}).encode(chat, 512));
      },
      ExitCode::BadData, {"a message contains U+FDDF"});
}

}  // namespace
}  // namespace llm::text
