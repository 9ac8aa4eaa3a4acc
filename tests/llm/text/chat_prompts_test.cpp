// The ids before each learned answer are those of the prompt that generation builds: real chat
// templates, tokenizers and conversations, each with each.

#include "tests/llm/text/chat_prompts.h"

#include <fstream>

#include <gtest/gtest.h>

namespace llm::text {
namespace {

using nlohmann::ordered_json;

const std::filesystem::path& golden_folder() {
  static const std::filesystem::path folder = *sherd::test::extra_data("chat");
  return folder;
}

std::vector<GoldenChat> all_conversations() {
  std::vector<GoldenChat> all;
  std::ifstream lines(golden_folder() / "conversations.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto chat = ordered_json::parse(line);
    all.push_back({chat["name"],
                   {chat["messages"], chat.value("tools", ordered_json())},
                   chat.value("kwargs", ordered_json::object())});
  }
  return all;
}

TemplateOfModel template_of_model(const std::string& name) {
  std::ifstream file(golden_folder() / "templates.json");
  for (const ordered_json& facts : ordered_json::parse(file)) {
    if (facts["name"] == name) {
      return {golden_folder() / "templates" / (name + ".jinja"), facts["special_tokens"],
              facts["stop_tokens"], facts["control_tokens"]};
    }
  }
  throw std::runtime_error("no template " + name);
}

// Of each family of templates one that a conversation can be learned with.
constexpr const char* kTemplates[] = {"chatml",
                                      "zephyr",
                                      "llama-2",
                                      "trl-llama3",
                                      "meta-llama-Llama-3.1-8B-Instruct",
                                      "mistral-common-v1",
                                      "mistral-common-v7",
                                      "google-gemma-2-2b-it",
                                      "microsoft-Phi-3.5-mini-instruct",
                                      "HuggingFaceTB-SmolLM2-135M-Instruct",
                                      "Qwen-Qwen2.5-7B-Instruct",
                                      "Qwen-Qwen3-0.6B",
                                      "Qwen3.5-4B",
                                      "openai-gpt-oss-120b",
                                      "ibm-granite-granite-3.3-2B-Instruct",
                                      "LFM2.5-8B-A1B"};

// Returns how many answers were compared.
int expect_prompts_with(const std::filesystem::path& tokenizer) {
  const std::vector<GoldenChat> chats = all_conversations();
  const Tokenizer plain = Tokenizer::from_folder(tokenizer.parent_path());
  EXPECT_GE(chats.size(), 72U);
  int answers = 0;
  for (const char* name : kTemplates) {
    PromptsOfGeneration prompts(plain, template_of_model(name), name);
    for (const GoldenChat& chat : chats) {
      prompts.expect_prompts(chat);
    }
    EXPECT_GT(prompts.answers(), 20) << name;
    answers += prompts.answers();
  }
  return answers;
}

class ChatPrompts : public testing::TestWithParam<const char*> {};

TEST_P(ChatPrompts, OfTrainingAreThoseOfGeneration) {
  SHERD_NEEDS_EXTRA_DATA("chat/conversations.jsonl");
  SHERD_NEEDS_EXTRA_DATA(GetParam());
  const int answers = expect_prompts_with(*sherd::test::extra_data(GetParam()));
  RecordProperty("answers", answers);
  std::cout << answers << " answers with " << GetParam() << '\n';
}

// The last two are those that chat/fetch_tokenizers.sh writes into the folder chat/tokenizers.
INSTANTIATE_TEST_SUITE_P(Tokenizers, ChatPrompts,
                         testing::Values("stories260k-hf/tokenizer.json",
                                         "llama3-tokenizer/tokenizer.json",
                                         "chat/tokenizers/smollm2/tokenizer.json",
                                         "chat/tokenizers/qwen3/tokenizer.json",
                                         "chat/tokenizers/gemma3/tokenizer.json"));

}  // namespace
}  // namespace llm::text
