#include "files/wrapped_text.h"

#include <gtest/gtest.h>

namespace sherd::files {
namespace {

TEST(Wrapped, LeavesWhatFitsAsItIs) {
  EXPECT_EQ(wrapped("", 5), "");
  EXPECT_EQ(wrapped("one  two", 8), "one  two");
}

TEST(Wrapped, BreaksAtTheLastSpaceThatFits) {
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 6), "one\ntwo\nthree");
  EXPECT_EQ(wrapped("one two   ", 3), "one\ntwo");
}

TEST(Wrapped, BreaksAWordThatIsWiderByItself) {
  EXPECT_EQ(wrapped("a/long/path to", 6), "a/long\n/path\nto");
}

TEST(Wrapped, IndentsWhatFollows) {
  EXPECT_EQ(wrapped("name one two", 8, 5), "name one\n     two");
  EXPECT_EQ(wrapped("ab", 1, 9), "a\n         b");  // no room is left: a character a line
}

TEST(Wrapped, CountsCharacters) {
  EXPECT_EQ(wrapped("äöü äöü", 3), "äöü\näöü");
}

TEST(Wrapped, BreaksAfterAPart) {
  EXPECT_EQ(wrapped("loss 1 | lr 0.1 | mem 4 MiB", 18, 0, " |"), "loss 1 | lr 0.1 |\nmem 4 MiB");
  EXPECT_EQ(wrapped("12 steps, 3 a second", 10, 0, ","), "12 steps,\n3 a second");
}

}  // namespace
}  // namespace sherd::files
