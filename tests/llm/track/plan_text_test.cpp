#include "llm/track/plan_text.h"

#include <gtest/gtest.h>

namespace llm::track {
namespace {

TEST(ShortPlan, JoinsNeighboursThatDifferInTheirNames) {
  EXPECT_EQ(short_plan("root: 3 parameters, 30 bytes\n"
                       "layers.0: 9 parameters, 80 bytes\n"
                       "layers.1: 9 parameters, 80 bytes\n"
                       "layers.2: 9 parameters, 80 bytes\n"
                       "head: 1 parameters, 7 bytes\n"),
            "root: 3 parameters, 30 bytes\n"
            "layers.0 to layers.2 (3 units), each: 9 parameters, 80 bytes\n"
            "head: 1 parameters, 7 bytes\n");
  EXPECT_EQ(short_plan("root: 3 parameters\n"), "root: 3 parameters\n");
  EXPECT_EQ(short_plan(""), "");
}

}  // namespace
}  // namespace llm::track
