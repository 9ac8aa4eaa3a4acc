// The program tokenizer_check as a user runs it.

#include <cstdio>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using sherd::test::TempFolder;
using ::testing::HasSubstr;

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

Outcome check(const std::filesystem::path& tokenizer, const std::filesystem::path& cases,
              const std::string& more = "") {
  const TempFolder folder;
  const auto out = folder.path() / "out";
  const auto err = folder.path() / "err";
  const std::string command = std::string(SHERD_TEST_BINARY_DIR) + "/bin/tokenizer_check '" +
                              tokenizer.string() + "' '" + cases.string() + "' " + more + " > '" +
                              out.string() + "' 2> '" + err.string() + "'";
  const int status = std::system(command.c_str());
  return {WEXITSTATUS(status), sherd::test::bytes_of(out), sherd::test::bytes_of(err)};
}

const std::filesystem::path& stories_folder() {
  static const auto path = sherd::test::data_folder() / "stories260k-hf";
  return path;
}

TEST(TokenizerCheck, FindsNoDifferenceOnTheGoldens) {
  const Outcome outcome =
      check(stories_folder(), sherd::test::data_folder() / "goldens/tokenizer-stories260k.jsonl");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "{\"cases\":511,\"differ\":0,\"first\":null}\n");
  EXPECT_EQ(outcome.err, "");
}

TEST(TokenizerCheck, TellsTheFirstDifference) {
  const TempFolder folder;
  const auto cases =
      folder.write("cases.jsonl", R"({"text": "a", "ids": [261], "ids_with_special": [1, 261]})"
                                  "\n"
                                  R"({"text": "é", "ids": [1], "ids_with_special": [1, 1]})"
                                  "\n"
                                  R"({"text": "a", "ids": [261], "ids_with_special": [2, 261]})"
                                  "\n");
  const Outcome outcome = check(stories_folder(), cases);
  EXPECT_EQ(outcome.code, 0);
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["cases"], 3);
  EXPECT_EQ(report["differ"], 2);
  EXPECT_EQ(report["first"]["line"], 2);
  EXPECT_EQ(report["first"]["field"], "ids");
  EXPECT_EQ(report["first"]["expected"], nlohmann::json({1}));
}

TEST(TokenizerCheck, FailsWithTheRightCode) {
  const TempFolder folder;
  const auto empty = folder.write("empty.jsonl", "");
  const auto broken = folder.write("broken.jsonl", "{\"text\": \"a\"}\n");
  const auto syntax = folder.write("syntax.jsonl", "{\"text\": \n");
  const auto expect_failure = [](const Outcome& outcome, int code, const std::string& message) {
    EXPECT_EQ(outcome.code, code);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(message));
  };
  expect_failure(check(stories_folder(), empty, "extra"), 64,
                 "usage: tokenizer_check TOKENIZER_DIR CASES.jsonl");
  expect_failure(check(stories_folder(), empty), 65, "empty.jsonl: contains no cases");
  expect_failure(check(stories_folder(), broken), 65,
                 "broken.jsonl:1: `ids` is missing or has another type");
  expect_failure(check(stories_folder(), syntax), 65,
                 "syntax.jsonl:1: not JSON: parse error at line 1, column 10");
  expect_failure(check(folder.path(), broken), 66,
                 "tokenizer.json: cannot be opened: No such file");
  expect_failure(check(stories_folder(), folder.path() / "none"), 66,
                 "none: cannot be opened: No such file");
}

}  // namespace
}  // namespace llm::text
