#pragma once
// The property behind the rule of chat data: the ids before each answer that is learned are those
// of the prompt that generation builds, and what is learned is what generation would write and stop
// at.

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "llm/text/chat_encoder.h"
#include "llm/text/conversation.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::text {

/// A chat template with the tokens of its models.
struct TemplateOfModel {
  std::filesystem::path file;
  nlohmann::ordered_json special_tokens;  ///< {"bos_token": "<s>"}
  std::vector<std::string> stop_tokens;   ///< what generation stops at
  std::vector<std::string> control_tokens;
};

/// A conversation of the goldens with the arguments that it gives to templates.
struct GoldenChat {
  std::string name;
  Conversation conversation;
  nlohmann::ordered_json arguments;
};

/// A folder with a tokenizer that has the tokens of a template.
class ChatModelFolder {
 public:
  ChatModelFolder(const Tokenizer& plain, const TemplateOfModel& chat) {
    std::string added;
    std::int64_t next = plain.vocabulary_size();
    nlohmann::json stop_ids;
    const std::vector<std::string> special = plain.special_tokens();
    std::vector<std::string> tokens = chat.stop_tokens;
    tokens.insert(tokens.end(), chat.control_tokens.begin(), chat.control_tokens.end());
    std::map<std::string, std::int64_t> ids;
    for (const std::string& token : tokens) {
      if (ids.contains(token)) {
        continue;
      }
      const auto known = plain.token_to_id(token);
      ids[token] = known ? *known : next++;
      if (std::find(special.begin(), special.end(), token) == special.end()) {
        added += (added.empty() ? "" : ", ") + added_token(token, ids[token]);
      }
    }
    for (const std::string& token : chat.stop_tokens) {
      stop_ids.push_back(ids.at(token));
    }
    folder_.write("tokenizer.json",
                  with_added(sherd::test::bytes_of(plain.folder() / "tokenizer.json"), added));
    folder_.write("tokenizer_config.json", nlohmann::json(chat.special_tokens).dump());
    folder_.write("generation_config.json", nlohmann::json{{"eos_token_id", stop_ids}}.dump());
  }

  [[nodiscard]] std::filesystem::path path() const { return folder_.path(); }

 private:
  static std::string added_token(const std::string& token, std::int64_t id) {
    return nlohmann::json{{"id", id},           {"content", token}, {"special", true},
                          {"lstrip", false},    {"rstrip", false},  {"single_word", false},
                          {"normalized", false}}
        .dump();
  }

  // The list ends before the field `normalizer`, which follows it in every tokenizer.json.
  static std::string with_added(std::string json, const std::string& added) {
    const std::size_t end = json.rfind(']', json.find("\"normalizer\""));
    const std::size_t last = json.find_last_not_of(" \t\r\n", end - 1);
    if (!added.empty()) {
      json.insert(last + 1, (json[last] == '[' ? "" : ", ") + added);
    }
    return json;
  }

  sherd::test::TempFolder folder_;
};

/// Compares what is learned with what generation would be given and write.
class PromptsOfGeneration {
 public:
  PromptsOfGeneration(const Tokenizer& plain, const TemplateOfModel& chat, std::string label)
      : model_(plain, chat),
        tokenizer_(Tokenizer::from_folder(model_.path())),
        template_(ChatTemplate::from_file(chat.file, chat.special_tokens)),
        stop_tokens_(chat.stop_tokens),
        label_(std::move(label)) {}

  /// Checks each answer that is learned; a conversation that the rule refuses has none.
  void expect_prompts(const GoldenChat& chat) {
    const ChatEncoder encoder(tokenizer_, template_, {.arguments = chat.arguments, .now = kNow});
    std::vector<LabelledPrompt> samples;
    try {
      samples = encoder.encode(chat.conversation, 1 << 20);
    } catch (const sherd::Error&) {
      return;
    }
    const std::map<int, Turn> turns = turns_of(chat);
    std::vector<int> learned;
    for (const LabelledPrompt& sample : samples) {
      for (std::size_t i = 1; i < sample.ids.size(); ++i) {
        if (sample.supervised[i] == 1 && sample.supervised[i - 1] == 0) {
          learned.push_back(expect_answer(sample, i, turns, chat.name));
        }
      }
    }
    std::sort(learned.begin(), learned.end());
    std::vector<int> all;
    for (const auto& [number, turn] : turns) {
      all.push_back(number);
    }
    EXPECT_EQ(learned, all) << label_ << ": " << chat.name;  // each once
    answers_ += static_cast<int>(learned.size());
  }

  [[nodiscard]] int answers() const { return answers_; }

 private:
  static constexpr const char* kNow = "2026-03-09T07:05:03";

  // An answer that is to be learned: the prompt's ids, and what has to follow.
  struct Turn {
    std::vector<TokenId> prompt;
    std::string answer;
  };

  [[nodiscard]] std::string rendered(const GoldenChat& chat, std::size_t count,
                                     bool add_generation_prompt) const {
    const auto first = chat.conversation.messages.begin();
    nlohmann::ordered_json arguments = chat.arguments;
    arguments["add_generation_prompt"] = add_generation_prompt;
    const auto messages =
        nlohmann::ordered_json::array_t(first, first + static_cast<std::ptrdiff_t>(count));
    return template_.render(messages, chat.conversation.tools, arguments, kNow).text;
  }

  // By the number of the message.
  [[nodiscard]] std::map<int, Turn> turns_of(const GoldenChat& chat) const {
    std::map<int, Turn> turns;
    const nlohmann::ordered_json& messages = chat.conversation.messages;
    for (std::size_t i = 1; i < messages.size(); ++i) {
      if (messages[i]["role"] != "assistant" || messages[i].value("weight", 1) == 0) {
        continue;
      }
      const std::string prompt = rendered(chat, i, true);
      const std::string whole = rendered(chat, i + 1, false);
      const auto end = first_stop(whole, prompt.size(), stop_tokens_);
      EXPECT_TRUE(whole.starts_with(prompt) && end) << label_ << ": " << chat.name;
      turns[static_cast<int>(i)] = {tokenizer_.encode(prompt, SpecialTokens::Leave).ids,
                                    whole.substr(prompt.size(), *end - prompt.size())};
    }
    return turns;
  }

  // Of the answer that begins at `begin` returns the message.
  int expect_answer(const LabelledPrompt& sample, std::size_t begin,
                    const std::map<int, Turn>& turns, const std::string& name) const {
    const auto behind = std::find(sample.supervised.begin() + static_cast<std::ptrdiff_t>(begin),
                                  sample.supervised.end(), std::uint8_t{0});
    const auto first = sample.ids.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = sample.ids.begin() + (behind - sample.supervised.begin());
    const std::vector<TokenId> before(sample.ids.begin(), first);
    const std::vector<TokenId> answer(first, last);
    const auto turn = std::find_if(turns.begin(), turns.end(),
                                   [&](const auto& one) { return one.second.prompt == before; });
    if (turn == turns.end()) {
      ADD_FAILURE() << label_ << ": " << name << ": no prompt of generation is "
                    << tokenizer_.decode(before, false);
      return -1;
    }
    // A decoder may leave out a blank at the begin, and writes ▁ as one.
    const std::string expected =
        tokenizer_.decode(tokenizer_.encode(turn->second.answer, SpecialTokens::Leave).ids, false);
    const std::string written = tokenizer_.decode(answer, false);
    const auto text = [](const std::string& one) {
      const std::size_t blanks = one.find_first_not_of(' ');
      return blanks == std::string::npos ? "" : one.substr(blanks);
    };
    EXPECT_EQ(text(written), text(expected)) << label_ << ": " << name;
    EXPECT_THAT(tokenizer_.stop_ids(), testing::Contains(answer.back())) << label_ << ": " << name;
    return turn->first;
  }

  ChatModelFolder model_;
  Tokenizer tokenizer_;
  ChatTemplate template_;
  std::vector<std::string> stop_tokens_;
  std::string label_;
  int answers_ = 0;
};

}  // namespace llm::text
