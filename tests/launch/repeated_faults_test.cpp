#include "launch/repeated_faults.h"

#include "gtest/gtest.h"

namespace sherd::launch {
namespace {

TEST(RepeatedFaults, AreThoseThatAnotherRankReported) {
  RepeatedFaults faults;
  EXPECT_FALSE(faults.is_repetition(1, "sherd: two faults:"));
  EXPECT_FALSE(faults.is_repetition(1, "  the first"));
  EXPECT_TRUE(faults.is_repetition(0, "sherd: two faults:"));
  EXPECT_TRUE(faults.is_repetition(0, "  the first"));
  EXPECT_FALSE(faults.is_repetition(1, "  the second"));
  EXPECT_TRUE(faults.is_repetition(0, "  the second"));
  EXPECT_FALSE(faults.is_repetition(0, "something else"));
  EXPECT_FALSE(faults.is_repetition(0, "  and its details"));
}

TEST(RepeatedFaults, OneRankMaySayTheSameTwice) {
  RepeatedFaults faults;
  EXPECT_FALSE(faults.is_repetition(0, "sherd: again"));
  EXPECT_FALSE(faults.is_repetition(0, "sherd: again"));
}

TEST(RepeatedFaults, OtherLinesAreOfEachRank) {
  RepeatedFaults faults;
  EXPECT_FALSE(faults.is_repetition(0, "step 1"));
  EXPECT_FALSE(faults.is_repetition(1, "step 1"));
}

}  // namespace
}  // namespace sherd::launch
