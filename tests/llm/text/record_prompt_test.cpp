#include "llm/text/record_prompt.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

PromptEncoder records_encoder(std::int64_t max_length, std::int64_t max_answer) {
  return {Tokenizer::from_folder(sherd::test::data_folder() / "stories260k-hf"),
          {max_length, max_answer}};
}

std::string decoded(const PromptEncoder& encoder, const LabelledPrompt& sample, bool supervised) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < sample.ids.size(); ++i) {
    if ((sample.supervised[i] == 1) == supervised) {
      ids.push_back(sample.ids[i]);
    }
  }
  return encoder.tokenizer().decode(ids);
}

TEST(RecordPrompt, TheCompletionAndTheEndAreSupervised) {
  const PromptEncoder encoder = records_encoder(128, 8);
  for (const auto& [prompt, completion] : std::vector<std::pair<std::string, std::string>>{
           {"Who is it?", "Lily"}, {"Who is it? ", "Lily"}, {"Who is it?", " Lily"}}) {
    const LabelledPrompt sample = encode_record(encoder, prompt, completion);
    EXPECT_EQ(decoded(encoder, sample, false), "Who is it?") << prompt;
    EXPECT_THAT(decoded(encoder, sample, true), testing::AnyOf("Lily", " Lily"));
    EXPECT_EQ(sample.ids.back(), encoder.tokenizer().end_id());
    EXPECT_EQ(sample.supervised.back(), 1);
    EXPECT_EQ(sample.ids,
              encode_record(encoder, "Who is it?", "Lily").ids);  // a space, however it is given
  }
  const LabelledPrompt lines = encode_record(encoder, "Who is it?\n", "Lily");
  EXPECT_EQ(decoded(encoder, lines, false), "Who is it?\n");
}

// A user may have rendered a template himself.
TEST(RecordPrompt, KeepsSpecialTokensOfTheTextAndAddsNoneTwice) {
  const PromptEncoder encoder = records_encoder(128, 8);
  const auto plain = encode_record(encoder, "Who is it?", "Lily");
  const auto rendered = encode_record(encoder, "<s>Who is it?", "Lily</s>");
  EXPECT_EQ(std::count(rendered.ids.begin(), rendered.ids.end(), 1), 1);
  EXPECT_EQ(std::count(rendered.ids.begin(), rendered.ids.end(), 2), 1);
  EXPECT_EQ(rendered.ids.front(), plain.ids.front());
  EXPECT_EQ(rendered.ids.back(), plain.ids.back());
  EXPECT_EQ(encode_prompt(encoder.tokenizer(), "<s>Who is it?").at(1), rendered.ids.at(1));
}

// A model whose folder names two tokens that stop generation, <end> (0) and <turn> (1), and whose
// tokenizer puts <begin> (2) in front. Words are 4 and 5, a line end is 6.
std::filesystem::path two_stops(const sherd::test::TempFolder& folder) {
  folder.write("tokenizer.json", R"({"version": "1.0", "added_tokens": [
      {"id": 0, "content": "<end>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
      {"id": 1, "content": "<turn>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
      {"id": 2, "content": "<begin>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\n"}, "behavior": "Isolated", "invert": false},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<begin>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
      "special_tokens": {"<begin>": {"id": "<begin>", "ids": [2], "tokens": ["<begin>"]}}},
    "model": {"type": "WordLevel", "unk_token": "?",
      "vocab": {"<end>": 0, "<turn>": 1, "<begin>": 2, "?": 3, "Who": 4, "Lily": 5, "\n": 6}}})");
  folder.write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  folder.write("generation_config.json", R"({"eos_token_id": [0, 1]})");
  return folder.path();
}

TEST(RecordPrompt, AddsNoEndWhereTheCompletionHasATokenThatStopsGeneration) {
  const sherd::test::TempFolder folder;
  const PromptEncoder encoder(Tokenizer::from_folder(two_stops(folder)), {32, 8},
                              {.separator = ""});
  const auto ids = [&](const std::string& prompt, const std::string& completion) {
    return encode_record(encoder, prompt, completion).ids;
  };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(ids("Who<turn>", "Lily"), (Ids{2, 4, 1, 5, 0}));  // that is the prompt's
  EXPECT_EQ(ids("Who<turn>", "Lily<turn>"), (Ids{2, 4, 1, 5, 1}));
  EXPECT_EQ(ids("Who<turn>", "Lily<end>"), (Ids{2, 4, 1, 5, 0}));
  EXPECT_EQ(ids("<begin>Who<turn>", "Lily<turn>\n"), (Ids{2, 4, 1, 5, 1}));
  EXPECT_EQ(ids("Who<turn>", "Lily\n"), (Ids{2, 4, 1, 5, 6, 0}));
  const LabelledPrompt sample = encode_record(encoder, "<begin>Who<turn>", "Lily<turn>\n");
  EXPECT_EQ(sample.supervised, (std::vector<std::uint8_t>{0, 0, 0, 1, 1}));
}

// A token that is there once counts once.
TEST(RecordPrompt, DoesNotCutAPromptForABeginThatIsNotAddedTwice) {
  const sherd::test::TempFolder folder;
  const Tokenizer tokenizer = Tokenizer::from_folder(two_stops(folder));
  const PromptEncoder encoder(tokenizer, {5, 2}, {.separator = ""});
  EXPECT_FALSE(encode_record(encoder, "<begin>Who<turn>", "Lily").context_was_cut);
  const LabelledPrompt cut = encode_record(encoder, "<begin>Who<turn>Who<turn>", "Lily");
  EXPECT_TRUE(cut.context_was_cut);
  EXPECT_EQ(cut.ids, (std::vector<TokenId>{2, 4, 1, 5, 0}));  // the tokenizer's own begin
}

TEST(RecordPrompt, PutsTheSeparatorBetweenPromptAndCompletion) {
  const auto tokenizer = Tokenizer::from_folder(sherd::test::data_folder() / "stories260k-hf");
  const PromptEncoder lines(tokenizer, {128, 8}, {.separator = "\n"});
  EXPECT_EQ(tokenizer.decode(encode_record(lines, "Who?", "Lily").ids), "Who?\nLily");
  const PromptEncoder nothing(tokenizer, {128, 8}, {.separator = ""});
  EXPECT_EQ(tokenizer.decode(encode_record(nothing, "Who?", "Lily").ids), "Who?Lily");
  EXPECT_EQ(tokenizer.decode(encode_record(lines, "", "Lily").ids), "Lily");  // a text of its own
  EXPECT_NE(lines.key(), nothing.key());
  EXPECT_EQ(records_encoder(128, 8).key(), "");
}

TEST(RecordPrompt, ALongPromptLosesItsBegin) {
  const PromptEncoder encoder = records_encoder(32, 8);
  std::string prompt;
  for (int i = 0; i < 30; ++i) {
    prompt += "Lily saw " + std::to_string(i) + " dögs. ";
  }
  prompt += "Who is it?";
  const LabelledPrompt sample = encode_record(encoder, prompt, "Lily");
  EXPECT_LE(sample.ids.size(), 32U);
  EXPECT_TRUE(sample.context_was_cut);
  EXPECT_FALSE(sample.answer_was_cut);
  EXPECT_GT(sample.cut_bytes, 0);
  const std::string kept = decoded(encoder, sample, false);
  EXPECT_TRUE(prompt.ends_with("Who is it?") && kept.ends_with("Who is it?")) << kept;
  EXPECT_EQ(kept.find("\xef\xbf\xbd"), std::string::npos);
  const auto fits = encode_record(encoder, "Who is it?", "Lily");
  EXPECT_FALSE(fits.context_was_cut);
  EXPECT_EQ(fits.cut_bytes, 0);
}

TEST(RecordPrompt, ACompletionMayHaveWhatThePromptLeaves) {
  const PromptEncoder encoder = records_encoder(64, 4);
  const std::string twelve = "Lily saw a big dog and she was very happy to see it.";
  const LabelledPrompt whole = encode_record(encoder, "Who?", twelve);
  EXPECT_FALSE(whole.answer_was_cut);
  EXPECT_GT(whole.ids.size(), 12U);
  const LabelledPrompt cut = encode_record(encoder, "Who?", twelve + twelve + twelve + twelve);
  EXPECT_TRUE(cut.answer_was_cut);
  EXPECT_EQ(cut.ids.size(), 64U);
  EXPECT_NE(cut.ids.back(), encoder.tokenizer().end_id());
}

// Nothing comes before the first token that it could be learned from.
TEST(RecordPrompt, OfTheSmallestLengthsTheFirstTokenIsNeverSupervised) {
  const std::string prompt = "Who is it? 🦙";
  for (std::int64_t length = 2; length < 30; ++length) {
    for (std::int64_t answer = 1; answer < length; ++answer) {
      const PromptEncoder encoder = records_encoder(length, answer);
      if (length - answer == 1) {  // the tokenizer's <s> takes it
        sherd::test::expect_error(
            [&] { static_cast<void>(encode_record(encoder, prompt, "Lily")); },
            sherd::ExitCode::BadData,
            {"nothing of the prompt is left", "data.max_length (" + std::to_string(length) + ")",
             "leaves 1 for it"});
        continue;
      }
      try {
        const LabelledPrompt sample = encode_record(encoder, prompt, "Lily");
        EXPECT_EQ(sample.supervised.front(), 0) << length << ", " << answer;
        EXPECT_LE(std::ssize(sample.ids), length);
      } catch (const sherd::Error& error) {
        EXPECT_LE(length - answer, 5) << error.what();  // <s>, a space and 🦙 are six tokens
      }
    }
  }
}

TEST(RecordPrompt, ForGenerationIsThatOfTraining) {
  const PromptEncoder encoder = records_encoder(256, 8);
  for (const std::string prompt : {"Who is it?", "Who is it? ", "Who is it?\t ", "One\ntwo\n"}) {
    const LabelledPrompt sample = encode_record(encoder, prompt, "Lily");
    const auto prompt_tokens = std::count(sample.supervised.begin(), sample.supervised.end(), 0);
    EXPECT_EQ(encode_prompt(encoder.tokenizer(), prompt),
              std::vector<TokenId>(sample.ids.begin(), sample.ids.begin() + prompt_tokens))
        << prompt;
  }
  EXPECT_EQ(encode_prompt(encoder.tokenizer(), "").size(), 1U);  // <s>
}

// A tokenizer whose template ends every text: the end is for the model to write.
TEST(RecordPrompt, ForGenerationHasNoTokenBehindIt) {
  const sherd::test::TempFolder folder;
  folder.write("tokenizer.json", R"({"version": "1.0", "added_tokens": [],
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
      {"SpecialToken": {"id": "<end>", "type_id": 0}}], "pair": [],
      "special_tokens": {"<end>": {"id": "<end>", "ids": [1], "tokens": ["<end>"]}}},
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "<end>": 1, "Lily": 2}}})");
  folder.write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  const PromptEncoder encoder(Tokenizer::from_folder(folder.path()), {32, 8});
  EXPECT_EQ(encode_prompt(encoder.tokenizer(), "Lily "), std::vector<TokenId>{2});
  EXPECT_EQ(encoder.encode("Who?", "Lily").back(), 0);  // "Answer:", not the end
  const LabelledPrompt sample = encode_record(encoder, "Lily", "Lily");
  EXPECT_EQ(sample.ids, (std::vector<TokenId>{2, 2, 1}));
  EXPECT_EQ(sample.supervised, (std::vector<std::uint8_t>{0, 1, 1}));
}

}  // namespace
}  // namespace llm::text
