#include "src/step/schedule.h"

#include <gtest/gtest.h>

namespace sherd::detail {
namespace {

using Units = std::vector<int>;

// Runs a forward and answers what was proposed at each unit.
std::vector<Units> forward(Schedule& schedule, const Units& order) {
  schedule.begin_iteration();
  std::vector<Units> proposed;
  for (const int unit : order) {
    schedule.begin_unit(unit);
    proposed.push_back(schedule.ahead_in_forward());
  }
  for (const int unit : order) {
    if (unit != 0) {
      schedule.end_unit(unit);
    }
  }
  schedule.end_unit(0);
  return proposed;
}

std::vector<Units> backward(Schedule& schedule, const Units& order) {
  schedule.begin_backward();
  std::vector<Units> proposed;
  for (const int unit : order) {
    proposed.push_back(schedule.ahead_in_backward(unit));
  }
  return proposed;
}

TEST(Schedule, ProposesTheOrderOfTheLastStepFromTheSecondOn) {
  Schedule schedule(2);
  EXPECT_EQ(forward(schedule, {0, 1, 2, 3}), (std::vector<Units>{{}, {}, {}, {}}));
  EXPECT_EQ(backward(schedule, {0, 3, 2, 1}), (std::vector<Units>{{3, 2}, {2, 1}, {1}, {}}));
  EXPECT_EQ(forward(schedule, {0, 1, 2, 3}), (std::vector<Units>{{1, 2}, {2, 3}, {3}, {}}));
}

TEST(Schedule, ProposesNothingAtDepthZero) {
  Schedule schedule(0);
  forward(schedule, {0, 1, 2});
  EXPECT_EQ(forward(schedule, {0, 1, 2}), (std::vector<Units>{{}, {}, {}}));
  EXPECT_EQ(backward(schedule, {0, 2, 1}), (std::vector<Units>{{}, {}, {}}));
}

TEST(Schedule, FindsItsWayAgainAfterAUnitThatWasLeftOut) {
  Schedule schedule(1);
  forward(schedule, {0, 1, 2, 3});
  EXPECT_EQ(forward(schedule, {0, 2, 3}), (std::vector<Units>{{1}, {3}, {}}));
}

TEST(Schedule, ProposesNothingAfterAUnitThatWasNotExpected) {
  Schedule schedule(1);
  forward(schedule, {0, 2, 3});
  EXPECT_EQ(forward(schedule, {0, 1, 2, 3}), (std::vector<Units>{{2}, {}, {3}, {}}));
}

TEST(Schedule, TakesAFirstOrderFromOutside) {
  Schedule schedule(1, {0, 3, 1});
  EXPECT_EQ(forward(schedule, {0, 3, 1}), (std::vector<Units>{{3}, {1}, {}}));
  EXPECT_EQ(forward(schedule, {0, 1, 3}), (std::vector<Units>{{3}, {}, {}}));
  EXPECT_EQ(forward(schedule, {0, 1, 3}), (std::vector<Units>{{1}, {3}, {}}));
}

TEST(Schedule, GoesBackThroughNestedUnitsInTheOrderInWhichTheyEnded) {
  Schedule schedule(2);
  schedule.begin_iteration();
  for (const int unit : {0, 1, 2}) {
    schedule.begin_unit(unit);
  }
  schedule.end_unit(2);
  schedule.begin_unit(3);
  for (const int unit : {3, 1, 0}) {
    schedule.end_unit(unit);
  }
  EXPECT_EQ(backward(schedule, {0, 1, 3, 2}), (std::vector<Units>{{1, 3}, {3, 2}, {2}, {}}));
}

TEST(Schedule, NeverProposesTheRoot) {
  Schedule schedule(3);
  forward(schedule, {0, 1, 0, 2});
  EXPECT_EQ(forward(schedule, {0, 1, 0, 2}), (std::vector<Units>{{1, 2}, {2}, {2}, {}}));
}

TEST(Schedule, FollowsAUnitThatRanTwice) {
  Schedule schedule(1);
  forward(schedule, {0, 1, 2, 1});
  EXPECT_EQ(backward(schedule, {0, 1, 2, 1}), (std::vector<Units>{{1}, {2}, {1}, {}}));
}

TEST(Schedule, BackwardThroughAPartAlone) {
  Schedule schedule(1);
  forward(schedule, {0, 1, 2, 3});
  EXPECT_EQ(backward(schedule, {2, 1, 3}), (std::vector<Units>{{1}, {}, {}}));
}

}  // namespace
}  // namespace sherd::detail
