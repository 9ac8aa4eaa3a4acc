// Preference pairs as samples: two documents, each as supervised training would have it.

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/inputs/batch.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/conversation.h"
#include "llm/text/record_prompt.h"
#include "tests/llm/inputs/stores.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::inputs {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;
using text::TokenId;

const FileReading kPairs = {.format = config::DataFormat::Preference};

text::Question pair_in(const TempFolder& folder, const std::string& record) {
  return whole(folder.write("pairs.jsonl", record), kPairs).questions.at(0);
}

Dataset pairs(const TempFolder& folder, const std::string& records,
              const text::PromptEncoder& encoder) {
  return dataset(folder.write("pairs.jsonl", records), encoder, kPairs);
}

std::vector<TokenId> ids_of(const Sample& sample) {
  return {sample.ids.begin(), sample.ids.end()};
}

TEST(Preferences, AreEncodedAsSupervisedTextsAre) {
  const TempFolder folder;
  const text::PromptEncoder encoder = stories();
  const Dataset found = pairs(
      folder, R"({"prompt": "Who is it?", "chosen": "It is Lily", "rejected": "A dog"})", encoder);
  EXPECT_EQ(found.report.pairs, 1);
  const std::vector<Sample> documents = documents_of(found.samples[0]);
  ASSERT_EQ(documents.size(), 2U);
  for (std::size_t side : {0, 1}) {
    const text::LabelledPrompt alone =
        text::encode_record(encoder, "Who is it?", side == 0 ? "It is Lily" : "A dog");
    EXPECT_EQ(ids_of(documents[side]), alone.ids);
    EXPECT_TRUE(std::equal(alone.supervised.begin(), alone.supervised.end(),
                           documents[side].supervised.begin()));
    EXPECT_EQ(std::count(alone.ids.begin(), alone.ids.end(), 1), 1);  // one BOS
  }
  EXPECT_EQ(found.report.longest_tokens,
            std::max(std::ssize(documents[0].ids), std::ssize(documents[1].ids)));
}

TEST(Preferences, AreTwoDocumentsOfABatch) {
  const TempFolder folder;
  const Dataset found = pairs(folder,
                              R"({"prompt": "a", "chosen": "b c d", "rejected": "e"})"
                              "\n"
                              R"({"prompt": "f", "chosen": "g", "rejected": "h i"})",
                              stories());
  const Samples known = with_reference(found.samples, {{-1, -2}, {-3, -4}});
  const Batch batch = collate(known, std::vector<std::int64_t>{1, 0});
  EXPECT_TRUE(batch.are_pairs);
  EXPECT_EQ(batch.samples(), 2);
  ASSERT_EQ(batch.documents(), 4);
  EXPECT_EQ(batch.bounds[1], known.rejected_begin(1));
  EXPECT_EQ(batch.bounds[2], known.length(1));
  EXPECT_EQ(batch.reference_logps, (std::vector<double>{-3, -4, -1, -2}));
  const Part twice{known, 2};
  const Samples mixture = mixed({&twice, 1}, 0);
  EXPECT_EQ(mixture.rejected_begin(3), known.rejected_begin(1));
  EXPECT_EQ(mixture[3].reference_logps->rejected, -4);
  EXPECT_THROW(static_cast<void>(with_reference(found.samples, {{-1, -2}})), std::invalid_argument);
}

// A prompt that is too long loses its begin; both answers stay whole.
TEST(Preferences, KeepTheirAnswersWhereThePromptIsCut) {
  const TempFolder folder;
  std::string prompt;
  for (int i = 0; i < 200; ++i) {
    prompt += "dog ";
  }
  const text::PromptEncoder encoder = stories(64);
  const Dataset found = pairs(
      folder,
      R"({"prompt": ")" + prompt + R"(ran", "chosen": "It is Lily", "rejected": "It is Tom"})",
      encoder);
  EXPECT_EQ(found.report.contexts_cut, 1);
  EXPECT_EQ(found.report.answers_cut, 0);
  for (const Sample& document : documents_of(found.samples[0])) {
    EXPECT_LE(document.ids.size(), 64U);
    EXPECT_EQ(document.ids.back(), encoder.tokenizer().end_id());
    EXPECT_EQ(document.supervised.back(), 1);
  }
}

TEST(Preferences, WithoutAPromptHaveTheirCommonTextAsOne) {
  const TempFolder folder;
  const text::Question dialogue = pair_in(
      folder,
      R"({"chosen": "\n\nHuman: Hi\n\nAssistant: Good day", "rejected": "\n\nHuman: Hi\n\nAssistant: Go"})");
  EXPECT_EQ(dialogue.question, "\n\nHuman: Hi\n\nAssistant:");
  EXPECT_EQ(dialogue.answers.front().text, " Good day");
  EXPECT_EQ(dialogue.rejected->answers.front().text, " Go");
  EXPECT_EQ(dialogue.rejected->question, dialogue.question);
  const text::Question plain =
      pair_in(folder, R"({"chosen": "The dog is black", "rejected": "The dog is blue"})");
  EXPECT_EQ(plain.question, "The dog is");
  EXPECT_EQ(plain.answers.front().text, " black");
}

TEST(Preferences, OfWholeConversationsLearnWhatFollowsTheCommonMessages) {
  const TempFolder folder;
  const std::string common =
      R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, )"
      R"({"role": "user", "content": "Who?"}, {"role": "assistant", "content": )";
  const text::Question pair = pair_in(
      folder, R"({"chosen": )" + common + R"("Lily"}], "rejected": )" + common + R"("Tom"}]})");
  ASSERT_TRUE(pair.conversation && pair.rejected->conversation);
  EXPECT_EQ(pair.conversation->messages[1]["weight"], 0);
  EXPECT_FALSE(pair.conversation->messages[3].contains("weight"));
  const text::PromptEncoder encoder = chat_stories();
  const Dataset found = pairs(
      folder, R"({"chosen": )" + common + R"("Lily"}], "rejected": )" + common + R"("Tom"}]})",
      encoder);
  const std::vector<Sample> documents = documents_of(found.samples[0]);
  const auto text_of = [&](const Sample& document) {  // what is learned
    std::vector<TokenId> ids;
    for (std::size_t i = 0; i < document.ids.size(); ++i) {
      if (document.supervised[i] == 1) {
        ids.push_back(document.ids[i]);
      }
    }
    return encoder.tokenizer().decode(ids, false);
  };
  EXPECT_EQ(text_of(documents[0]), "Lily</s>");
  EXPECT_EQ(text_of(documents[1]), "Tom</s>");
  // A prompt next to whole conversations repeats their beginning.
  const text::Question both =
      pair_in(folder, R"({"prompt": "Hi", "chosen": )" + common + R"("Lily"}], "rejected": )" +
                          common + R"("Tom"}]})");
  EXPECT_EQ(both.conversation->messages, pair.conversation->messages);
}

// A prompt that whole conversations repeat is read once, and what they do not repeat is not lost.
TEST(Preferences, HaveAPromptOnce) {
  const TempFolder folder;
  const std::string user = R"({"role": "user", "content": "Hi"})",
                    yes = R"({"role": "assistant", "content": "Yes"})",
                    no = R"({"role": "assistant", "content": "No"})";
  const auto messages = [&](const std::string& prompt, const std::string& before_chosen,
                            const std::string& before_rejected) {
    return R"({"prompt": )" + prompt + R"(, "chosen": [)" + before_chosen + yes +
           R"(], "rejected": [)" + before_rejected + no + "]}";
  };
  const text::Question alone = pair_in(folder, messages("[" + user + "]", "", ""));
  EXPECT_EQ(alone.conversation->messages.size(), 2U);
  for (const std::string& prompt :
       {"[" + user + "]", std::string(R"("Hi")"), std::string("null")}) {
    SCOPED_TRACE(prompt);
    const text::Question whole = pair_in(folder, messages(prompt, user + ", ", user + ", "));
    EXPECT_EQ(whole.conversation->messages, alone.conversation->messages);
    EXPECT_EQ(whole.rejected->conversation->messages, alone.rejected->conversation->messages);
  }
  EXPECT_EQ(pair_in(folder, messages(R"("Hi")", "", "")).conversation->messages,
            alone.conversation->messages);
  const auto refused = [&](const std::string& record, const std::string& why) {
    expect_error([&] { static_cast<void>(pairs(folder, record, chat_stories())); },
                 ExitCode::BadData, {"line 1", why});
  };
  for (const std::string& prompt : {"[" + user + "]", std::string(R"("Hi")")}) {
    refused(messages(prompt, user + ", ", ""),
            R"("prompt" is repeated in "chosen" and not in "rejected": whole conversations)");
    refused(messages(prompt, "", user + ", "),
            R"("prompt" is repeated in "rejected" and not in "chosen": whole conversations)");
  }
  refused(messages(R"("Who?")", user + ", ", user + ", "),
          R"("prompt" is a text that "chosen" and "rejected" neither repeat nor answer)");
}

// Without a difference there is nothing to prefer.
TEST(Preferences, OfTheSameTokensAreRefused) {
  const TempFolder folder;
  const auto refused = [&](const std::string& record, const text::PromptEncoder& encoder,
                           const std::string& why) {
    expect_error([&] { static_cast<void>(pairs(folder, record, encoder)); }, ExitCode::BadData,
                 {"line 1", why});
  };
  refused(R"({"prompt": "a", "chosen": "b", "rejected": "b"})", stories(),
          "\"chosen\" and \"rejected\" are equal: a pair without a difference teaches nothing");
  const std::string list =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": )";
  refused(R"({"chosen": )" + list + R"("b"}], "rejected": )" + list + R"("b"}]})", chat_stories(),
          "are equal");
  refused(R"({"chosen": )" + list + R"("b"}], "rejected": )" + list.substr(0, 33) + "]}",
          chat_stories(), "\"rejected\": has no answer to learn");
  refused(
      R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], )"
      R"("rejected": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "b"}]})",
      chat_stories(), "have no first message in common that could be one");
}

// The share of a pair depends on both of its texts.
TEST(Preferences, AreHeldOutByBothTexts) {
  std::set<bool> sides;
  for (int i = 0; i < 50; ++i) {
    text::Question rejected;
    rejected.question = "a";
    rejected.answers = {{std::to_string(i)}};
    text::Question pair;
    pair.question = "a";
    pair.answers = {{"b"}};
    pair.rejected = std::make_shared<const text::Question>(rejected);
    sides.insert(is_held_out(pair, "", 0.5));
  }
  EXPECT_EQ(sides.size(), 2U);
}

}  // namespace
}  // namespace llm::inputs
