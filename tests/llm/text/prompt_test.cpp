#include "llm/text/prompt.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/llm/text/read_squad.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;

Tokenizer stories() {
  return Tokenizer::from_folder(sherd::test::data_folder() / "stories260k-hf");
}

QuestionFile recipe(const std::string& name) {
  return read_squad(std::filesystem::path(SHERD_TEST_SOURCE_DIR) / "recipes/data" / name);
}

// Where the supervised ids begin; from there on all are.
std::int64_t supervised_begin(const LabelledPrompt& sample) {
  EXPECT_EQ(sample.supervised.size(), sample.ids.size());
  EXPECT_TRUE(std::is_sorted(sample.supervised.begin(), sample.supervised.end()));
  return std::count(sample.supervised.begin(), sample.supervised.end(), 0);
}

std::vector<TokenId> prompt_of(const LabelledPrompt& sample) {
  return {sample.ids.begin(), sample.ids.begin() + supervised_begin(sample)};
}

std::vector<TokenId> supervised_of(const LabelledPrompt& sample) {
  return {sample.ids.begin() + supervised_begin(sample), sample.ids.end()};
}

// What the supervised tokens say, without the end token and the space before the answer. Decoded
// after the prompt, since many tokenizers drop a space at the start of a text.
std::string answer_of(const PromptEncoder& encoder, const LabelledPrompt& sample) {
  const std::string prompt = encoder.tokenizer().decode(prompt_of(sample));
  const std::string whole = encoder.tokenizer().decode(sample.ids);
  EXPECT_EQ(whole.substr(0, prompt.size() + 1), prompt + " ");
  return whole.substr(prompt.size() + 1);
}

// On every question: the supervised tokens decode to the answer and end in the end token; the ids
// before them are the prompt alone; nothing is longer than the limits allow.
void expect_labels_right(const PromptEncoder& encoder, const QuestionFile& file) {
  for (const Question& question : file.questions) {
    const std::string& context = file.contexts[question.context];
    const Answer& answer = question.answers.front();
    const LabelledPrompt sample = encoder.encode_labelled(question.question, context, answer);
    EXPECT_EQ(prompt_of(sample), encoder.encode(question.question, context)) << question.id;
    EXPECT_LE(supervised_begin(sample), encoder.limits().prompt_tokens()) << question.id;
    EXPECT_LE(supervised_of(sample).size(),
              static_cast<std::size_t>(encoder.limits().max_answer_tokens));
    const std::string said = answer_of(encoder, sample);
    if (sample.answer_was_cut) {
      EXPECT_NE(sample.ids.back(), encoder.tokenizer().end_id()) << question.id;
      EXPECT_EQ(answer.text.substr(0, said.size()), said) << question.id;
    } else {
      EXPECT_EQ(sample.ids.back(), encoder.tokenizer().end_id()) << question.id;
      EXPECT_EQ(said, answer.text) << question.id;
    }
  }
}

TEST(Prompt, SupervisedTokensDecodeToTheAnswer) {
  const QuestionFile file = recipe("squad-100-heldout.json");
  expect_labels_right(PromptEncoder(stories(), {512, 32}), file);
  expect_labels_right(PromptEncoder(stories(), {200, 8}), file);  // cuts contexts and answers
}

TEST(Prompt, SupervisedTokensDecodeToTheAnswerWithLlama3) {
  SHERD_NEEDS_EXTRA_DATA("llama3-tokenizer");
  const auto tokenizer = Tokenizer::from_folder(*sherd::test::extra_data("llama3-tokenizer"));
  const QuestionFile file = read_squad(*sherd::test::extra_data("squad/dev-v1.1.json"));
  expect_labels_right(PromptEncoder(tokenizer, {512, 32}), file);
  expect_labels_right(PromptEncoder(tokenizer, {100, 4}), file);
}

TEST(Prompt, IsWhatTheGuideSays) {
  const PromptEncoder encoder(stories(), {512, 32});
  const LabelledPrompt sample = encoder.encode_labelled("Who?", "Lily was here.", {"Lily", 0});
  EXPECT_EQ(encoder.tokenizer().decode(sample.ids, /*skip_special_tokens=*/false),
            "<s> Question: Who? Context: Lily was here. Answer: Lily</s>");
  EXPECT_EQ(encoder.tokenizer().decode(prompt_of(sample)),
            "Question: Who? Context: Lily was here. Answer:");
  EXPECT_FALSE(sample.context_was_cut || sample.answer_was_cut || sample.answer_is_outside);
}

TEST(Prompt, CutsTheContextAtItsEndWhateverTheAnswer) {
  const PromptEncoder encoder(stories(), {100, 20});
  std::string context;
  for (int i = 0; i < 40; ++i) {
    context += "Lily saw a big dog. ";
  }
  const LabelledPrompt early = encoder.encode_labelled("Who?", context, {"Lily", 0});
  const auto last = static_cast<std::int64_t>(context.rfind("dog"));
  const LabelledPrompt late = encoder.encode_labelled("Who?", context, {"dog", last});
  EXPECT_EQ(prompt_of(early), prompt_of(late));
  EXPECT_TRUE(early.context_was_cut);
  EXPECT_FALSE(early.answer_is_outside);
  EXPECT_TRUE(late.answer_is_outside);

  const std::string prompt = encoder.tokenizer().decode(prompt_of(early));
  const std::string before = "Question: Who? Context: ";
  const std::string after = " Answer:";
  ASSERT_EQ(prompt.substr(0, before.size()), before);
  ASSERT_EQ(prompt.substr(prompt.size() - after.size()), after);
  const std::string kept =
      prompt.substr(before.size(), prompt.size() - before.size() - after.size());
  EXPECT_EQ(context.substr(0, kept.size()), kept);
  EXPECT_NE(kept.back(), ' ');
  EXPECT_LE(supervised_begin(early), 80);
  EXPECT_GE(supervised_begin(early), 75) << "far more was cut than needed";
}

// Half a character would be refused by the tokenizer: it is not UTF-8.
void expect_whole_characters(const Tokenizer& tokenizer) {
  std::string context;
  for (int i = 0; i < 100; ++i) {
    context += "🦙é漢";
  }
  for (std::int64_t length = 60; length < 90; ++length) {
    const PromptEncoder encoder(tokenizer, {length, 8});
    EXPECT_NO_THROW(static_cast<void>(encoder.encode("Who?", context)));
  }
}

TEST(Prompt, NeverCutsWithinACharacter) {
  expect_whole_characters(stories());
}

TEST(Prompt, NeverCutsWithinACharacterWithLlama3) {
  SHERD_NEEDS_EXTRA_DATA("llama3-tokenizer");
  expect_whole_characters(Tokenizer::from_folder(*sherd::test::extra_data("llama3-tokenizer")));
}

TEST(Prompt, LeavesNoWhiteSpaceAtTheCut) {
  std::string context;
  for (int i = 0; i < 40; ++i) {
    context += "Lily  ran.\n\n";
  }
  for (std::int64_t length = 60; length < 90; ++length) {
    const PromptEncoder encoder(stories(), {length, 8});
    const std::string prompt = encoder.tokenizer().decode(encoder.encode("Who?", context));
    const char last = prompt[prompt.size() - std::string(" Answer:").size() - 1];
    EXPECT_TRUE(last != ' ' && last != '\n') << prompt;
  }
}

TEST(Prompt, AnswerCutToItsLimitHasNoEndToken) {
  const PromptEncoder encoder(stories(), {512, 4});
  const std::string context = "She loved to play outside in the park.";
  const LabelledPrompt sample = encoder.encode_labelled("What?", context, {context, 0});
  EXPECT_TRUE(sample.answer_was_cut);
  EXPECT_EQ(supervised_of(sample).size(), 4U);
  EXPECT_EQ(std::count(sample.ids.begin(), sample.ids.end(), encoder.tokenizer().end_id()), 0);
}

TEST(Prompt, TheEndTokenOfATemplateIsNotDoubled) {
  const sherd::test::TempFolder folder;
  folder.write("tokenizer.json", R"({"version": "1.0", "added_tokens": [],
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
      {"SpecialToken": {"id": "<end>", "type_id": 0}}], "pair": [],
      "special_tokens": {"<end>": {"id": "<end>", "ids": [1], "tokens": ["<end>"]}}},
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "<end>": 1, "Lily": 2}}})");
  folder.write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  const PromptEncoder encoder(Tokenizer::from_folder(folder.path()), {32, 8});
  const LabelledPrompt sample = encoder.encode_labelled("Who?", "Lily", {"Lily", 0});
  EXPECT_EQ(supervised_of(sample), (std::vector<TokenId>{2, 1}));
}

TEST(Prompt, RefusesAQuestionThatDoesNotFit) {
  const PromptEncoder encoder(stories(), {40, 8});
  expect_error([&] { static_cast<void>(encoder.encode(std::string(200, 'q'), "Lily.")); },
               ExitCode::BadData,
               {"tokens even without its context", "data.max_length (40)",
                "data.max_answer_tokens (8) leaves 32", "raise data.max_length"});
}

TEST(Prompt, RefusesLimitsWithoutRoom) {
  for (const PromptLimits limits :
       {PromptLimits{32, 32}, PromptLimits{64, 0}, PromptLimits{0, 32}}) {
    expect_error([&] { PromptEncoder(stories(), limits); }, ExitCode::Usage,
                 {"data.max_length (" + std::to_string(limits.max_length_tokens) + ")",
                  "data.max_answer_tokens (" + std::to_string(limits.max_answer_tokens) + ")"});
  }
}

}  // namespace
}  // namespace llm::text
