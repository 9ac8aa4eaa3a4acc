// The program chat_check as a user runs it.

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "llm/text/tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using nlohmann::json;
using sherd::test::TempFolder;
using ::testing::HasSubstr;

struct Answers {
  int code = 0;
  std::vector<json> lines;
};

Answers ask(const std::vector<std::string>& questions) {
  const TempFolder folder;
  std::string input;
  for (const std::string& question : questions) {
    input += question + "\n";
  }
  const auto in = folder.write("questions.jsonl", input);
  const auto out = folder.path() / "answers.jsonl";
  const std::string command = std::string(SHERD_TEST_BINARY_DIR) + "/bin/chat_check < '" +
                              in.string() + "' > '" + out.string() + "'";
  Answers answers{WEXITSTATUS(std::system(command.c_str())), {}};
  std::ifstream file(out);
  for (std::string line; std::getline(file, line);) {
    answers.lines.push_back(json::parse(line));
  }
  return answers;
}

// Asks for the golden tokens of the tokenizers that are there; returns how many cases were asked.
std::size_t expect_golden_tokens(const std::filesystem::path& goldens,
                                 const std::map<std::string, std::filesystem::path>& tokenizers) {
  std::vector<std::string> questions;
  std::vector<json> cases;
  const TempFolder folder;
  const auto plain = folder.path() / "tokens.jsonl";
  const std::string command = "gzip -dc '" + goldens.string() + "' > '" + plain.string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(plain);
  for (std::string line; std::getline(file, line);) {
    json golden = json::parse(line);
    const auto tokenizer = tokenizers.find(golden["tokenizer"]);
    if (tokenizer == tokenizers.end()) {
      continue;
    }
    questions.push_back(json{
        {"do", "tokens"},
        {"tokenizer_file", tokenizer->second.string()},
        {"text", golden["text"]},
        {"spans", golden["spans"]},
        {"rule",
         golden["rule"]}}.dump());
    cases.push_back(std::move(golden));
  }
  const Answers answers = ask(questions);
  EXPECT_EQ(answers.code, 0);
  EXPECT_EQ(answers.lines.size(), cases.size());
  for (std::size_t i = 0; i < std::min(cases.size(), answers.lines.size()); ++i) {
    const json& golden = cases[i];
    const json& answer = answers.lines[i];
    EXPECT_EQ(answer["ids"], golden["ids"]) << golden["text"];
    EXPECT_EQ(answer["mask"], golden["mask"]) << golden["text"];
    if (golden["rule"] == "starts") {
      const json same(golden["spans"].size(), nullptr);
      EXPECT_EQ(answer["as_generated"], golden.value("as_generated", same)) << golden["text"];
    }
  }
  return cases.size();
}

TEST(ChatCheck, GivesTheGoldenTokens) {
  const auto data = sherd::test::data_folder();
  EXPECT_EQ(expect_golden_tokens(data / "chat/tokens.jsonl.gz",
                                 {{"stories260k", data / "stories260k-hf/tokenizer.json"}}),
            68);
}

// Those of Qwen3's and Gemma 3's tokenizers are compared by `check.py run tokens chat_check`.
TEST(ChatCheck, GivesTheGoldenTokensOfThreeTokenizers) {
  SHERD_NEEDS_EXTRA_DATA("chat/tokens.jsonl.gz");
  SHERD_NEEDS_EXTRA_DATA("llama3-tokenizer/tokenizer.json");
  const auto data = *sherd::test::extra_data("chat");
  EXPECT_EQ(expect_golden_tokens(
                data / "tokens.jsonl.gz",
                {{"stories260k", sherd::test::data_folder() / "stories260k-hf/tokenizer.json"},
                 {"smollm2", data / "tokenizers/smollm2/tokenizer.json"},
                 {"llama3", *sherd::test::extra_data("llama3-tokenizer/tokenizer.json")}}),
            383);
}

// "Once" is one token, and "On" is no begin of its ids.
TEST(ChatCheck, TellsWhatGenerationWouldHaveWhereTokensStraddleASpan) {
  const auto folder = sherd::test::data_folder() / "stories260k-hf";
  const auto tokenizer = Tokenizer::from_folder(folder);
  const json question = {{"do", "tokens"},
                         {"tokenizer_file", (folder / "tokenizer.json").string()},
                         {"text", "Once upon</s>"},
                         {"spans", {{2, 13}, {4, 13}}},
                         {"rule", "starts"}};
  const Answers answers = ask({question.dump()});
  ASSERT_EQ(answers.code, 0);
  const json& answer = answers.lines.at(0);
  EXPECT_EQ(answer["ids"], json(tokenizer.encode_whole("Once upon</s>").ids));
  EXPECT_EQ(answer["as_generated"][0],
            json({{"prompt_ids", tokenizer.encode_whole("On").ids},
                  {"answer_ids", tokenizer.encode_whole("ce upon</s>").ids}}));
  EXPECT_EQ(answer["as_generated"][1], nullptr);
}

TEST(ChatCheck, AnswersEachQuestionAndFailsForThoseThatItCannotAnswer) {
  const TempFolder folder;
  const auto chat_template = folder.write("t.jinja", "{{ messages[0].content }}");
  const json render = {{"do", "render"},
                       {"template_file", chat_template.string()},
                       {"messages", {{{"role", "user"}, {"content", "Hi é"}}}},
                       {"tools", nullptr},
                       {"kwargs", json::object()},
                       {"now", "2026-03-09T07:05:03"}};
  json without_now = render;
  without_now.erase("now");
  json number = render;
  number["template_file"] = 5;
  json spans = {{"do", "tokens"},
                {"tokenizer_file", ""},
                {"text", "a"},
                {"spans", {{0, 2}}},
                {"rule", "starts"}};
  json rule = spans;
  rule["rule"] = "ends";
  const Answers good = ask({render.dump()});
  EXPECT_EQ(good.code, 0);
  EXPECT_EQ(good.lines.at(0), json({{"text", "Hi é"}, {"spans", json::array()}}));
  const Answers answers = ask({R"({"do": "dance"})", without_now.dump(), number.dump(), rule.dump(),
                               spans.dump(), "{", render.dump()});
  EXPECT_EQ(answers.code, 64);
  ASSERT_EQ(answers.lines.size(), 7);
  const char* parts[] = {
      "unknown kind of question: dance",    "the question has no field `now`",
      "`template_file` should be a string", "`rule` should be \"starts\" or \"overlaps\"",
      "`spans` should lie within `text`",   "parse error"};
  for (std::size_t i = 0; i < std::size(parts); ++i) {
    EXPECT_EQ(answers.lines[i]["error"]["class"], "question");
    EXPECT_THAT(answers.lines[i]["error"]["message"].get<std::string>(), HasSubstr(parts[i]));
  }
  EXPECT_EQ(answers.lines[6]["text"], "Hi é");
}

}  // namespace
}  // namespace llm::text
