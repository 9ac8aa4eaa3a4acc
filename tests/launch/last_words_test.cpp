#include "launch/last_words.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd::launch {
namespace {

using ::testing::ElementsAre;

TEST(LastWords, MarksLinesAndKeepsPartsBack) {
  LastWords words("[rank 1] ");
  EXPECT_EQ(words.take("one\ntwo\nthr"), "[rank 1] one\n[rank 1] two\n");
  EXPECT_EQ(words.take("ee"), "");
  EXPECT_EQ(words.take("\n\n"), "[rank 1] three\n[rank 1] \n");
  EXPECT_THAT(words.lines(), ElementsAre("one", "two", "three", ""));
}

TEST(LastWords, GivesTheRestAtTheEnd) {
  LastWords words("");
  EXPECT_EQ(words.take("half"), "");
  EXPECT_EQ(words.finish(), "half\n");
  EXPECT_EQ(words.finish(), "");
  EXPECT_THAT(words.lines(), ElementsAre("half"));
}

TEST(LastWords, KeepsOnlyTheLastLines) {
  LastWords words("");
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(words.take(std::to_string(i) + "\n"), std::to_string(i) + "\n");
  }
  ASSERT_EQ(words.lines().size(), LastWords::kKeptLines);
  EXPECT_EQ(words.lines().front(), "90");
  EXPECT_EQ(words.lines().back(), "99");
}

TEST(LastWords, CutsALineWithoutEnd) {
  LastWords words("");
  const std::string longest(LastWords::kLongestLine_bytes, 'x');
  EXPECT_EQ(words.take(longest + "\n"), longest + "\n");
  EXPECT_EQ(words.take(longest + "yz\n"), longest + "\nyz\n");
  EXPECT_EQ(words.take(longest + longest + "z"), longest + "\n" + longest + "\n");
  EXPECT_EQ(words.finish(), "z\n");
}

}  // namespace
}  // namespace sherd::launch
