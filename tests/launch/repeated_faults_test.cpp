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

TEST(RepeatedFaults, KnowWhoSaidOne) {
  RepeatedFaults faults;
  EXPECT_FALSE(faults.is_repetition(1, "peer lost: rank 0 has ended"));
  EXPECT_TRUE(faults.is_repetition(2, "peer lost: rank 0 has ended"));
  EXPECT_TRUE(faults.is_repetition(0, "[rank 0] peer lost: rank 0 has ended"));
  EXPECT_FALSE(faults.is_repetition(3, "sherd: no such file"));
  EXPECT_TRUE(faults.is_repetition(4, "sherd: no such file"));
  EXPECT_FALSE(faults.has_said(1));
  EXPECT_TRUE(faults.has_said(3));
  EXPECT_TRUE(faults.has_said(4));
}

}  // namespace
}  // namespace sherd::launch
