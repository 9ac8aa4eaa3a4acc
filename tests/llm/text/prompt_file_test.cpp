#include "llm/text/prompt_file.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::text {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;

TEST(PromptFile, HasAPromptALine) {
  const TempFolder folder;
  const std::string path = folder.write("p.txt", "Once upon\r\n\n {no} JSON").string();
  const auto prompts = read_prompts(path);
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0].text, "Once upon");
  EXPECT_EQ(prompts[1].text, " {no} JSON");
  EXPECT_EQ(prompts[1].place, path + ":3");
}

TEST(PromptFile, MayBeJsonLines) {
  const TempFolder folder;
  const auto prompts =
      read_prompts(folder.write("p.jsonl", "{\"prompt\": \"a\\nb\", \"id\": 7}\n").string());
  ASSERT_EQ(prompts.size(), 1U);
  EXPECT_EQ(prompts[0].text, "a\nb");
}

TEST(PromptFile, MayBeginWithAByteOrderMark) {
  const TempFolder folder;
  const std::string mark = "\xef\xbb\xbf";
  EXPECT_EQ(read_prompts(folder.write("p.txt", mark + "Tom\n").string())[0].text, "Tom");
  EXPECT_EQ(
      read_prompts(folder.write("p.jsonl", mark + "{\"prompt\": \"Tom\"}\n").string())[0].text,
      "Tom");
}

TEST(PromptFile, ThatCannotBeRightIsToldWithItsLine) {
  const TempFolder folder;
  const auto refuse = [&](const std::string& name, const std::string& bytes, ExitCode code,
                          const std::string& part) {
    const std::string path = folder.write(name, bytes).string();
    expect_error([&] { static_cast<void>(read_prompts(path)); }, code, {part});
  };
  const std::string good = "{\"prompt\": \"a\"}\n";
  refuse("p.jsonl", good + "{\"prompt\": 5}\n", ExitCode::BadData,
         "p.jsonl:2: should be an object with a string `prompt`");
  refuse("p.jsonl", good + "[1]\n", ExitCode::BadData, "p.jsonl:2: should be an object");
  refuse("p.jsonl", good + "{\"prompt\"\n", ExitCode::BadData, "p.jsonl:2");
  refuse("p.txt", "Tom\ncaf\xe9 au lait\n", ExitCode::BadData, "p.txt:2: not UTF-8 at byte 3");
  refuse("p.txt", "\n\n", ExitCode::BadData, "contains no prompt");
  refuse("p.csv", "a", ExitCode::Usage, "give a .txt file");
  expect_error([] { static_cast<void>(read_prompts("/no/p.txt")); }, ExitCode::InputMissing,
               {"/no/p.txt"});
}

}  // namespace
}  // namespace llm::text
