#include "llm/track/shell_word.h"

#include <cstdio>

#include <gtest/gtest.h>

namespace llm::track {
namespace {

std::string as_a_shell_reads(const std::string& word) {
  FILE* const shell = ::popen(("printf %s " + word).c_str(), "r");
  std::string text;
  for (int c = std::fgetc(shell); c != EOF; c = std::fgetc(shell)) {
    text.push_back(static_cast<char>(c));
  }
  ::pclose(shell);
  return text;
}

TEST(ShellWord, IsPlainWhereItCanBe) {
  EXPECT_EQ(shell_word("runs/a-1/x.wandb"), "runs/a-1/x.wandb");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(ShellWord, IsReadAsItWas) {
  for (const std::string text : {"a b", "it's", "$HOME; rm `x` \"y\"\\", "ö*?~"}) {
    EXPECT_EQ(as_a_shell_reads(shell_word(text)), text);
  }
}

}  // namespace
}  // namespace llm::track
