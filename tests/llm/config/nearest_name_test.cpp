#include "llm/config/nearest_name.h"

#include <vector>

#include "gtest/gtest.h"

namespace llm::config {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2);
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(NearestName, TakesTheClosestIfItIsClose) {
  const std::vector<std::string> names = {"warmup_steps", "max_steps", "epochs"};
  EXPECT_EQ(nearest_name("epoch", names), "epochs");
  EXPECT_EQ(nearest_name("max_step", names), "max_steps");
  EXPECT_EQ(nearest_name("warm_up_steps", names), "warmup_steps");
  EXPECT_EQ(nearest_name("warmup", names), "warmup_steps");
  EXPECT_EQ(nearest_name("dropout", names), "");
  EXPECT_EQ(nearest_name("epochs", {}), "");
}

}  // namespace
}  // namespace llm::config
