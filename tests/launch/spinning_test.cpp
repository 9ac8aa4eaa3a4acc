#include "launch/spinning.h"

#include "gtest/gtest.h"

namespace sherd::launch {
namespace {

TEST(Spinning, CountsWhatRunsBesideThisProcess) {
  EXPECT_EQ(running_tasks_in("0.20 0.18 0.12 3/80 11206\n"), 2);
  EXPECT_EQ(running_tasks_in("0.20 0.18 0.12 1/80 11206\n"), 0);
  for (const char* odd : {"", "0.20 0.18", "/", "a b c d/80 1", "0.2 0.2 0.2 99999999999999/1 1"}) {
    EXPECT_EQ(running_tasks_in(odd), 0) << odd;
  }
}

TEST(Spinning, IsShortOnlyWhereCoresAreShort) {
  EXPECT_EQ(spin_variable(2, 0, 2), std::nullopt);
  EXPECT_EQ(spin_variable(8, 8, 16), std::nullopt);
  EXPECT_EQ(spin_variable(2, 1, 2), "GOMP_SPINCOUNT=10000");
  EXPECT_EQ(spin_variable(4, 0, 2), "GOMP_SPINCOUNT=10000");
  EXPECT_EQ(spin_variable(1, 9, 2), std::nullopt);  // nobody to wait for
}

TEST(Spinning, IsTheUsersWhereTheySay) {
  const auto with = [](const std::string& set, const std::string& value) {
    return
        [=](const std::string& name) { return name == set ? std::optional(value) : std::nullopt; };
  };
  EXPECT_EQ(spin_variable_now(4096, with("GOMP_SPINCOUNT", "7")), std::nullopt);
  EXPECT_EQ(spin_variable_now(4096, with("OMP_WAIT_POLICY", "active")), std::nullopt);
  EXPECT_EQ(spin_variable_now(1, with("OMP_NUM_THREADS", "1")), std::nullopt);
  EXPECT_EQ(spin_variable_now(1, with("OMP_NUM_THREADS", "4096")), "GOMP_SPINCOUNT=10000");
}

}  // namespace
}  // namespace sherd::launch
