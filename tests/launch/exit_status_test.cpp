#include "launch/exit_status.h"

#include "gtest/gtest.h"

namespace sherd::launch {
namespace {

TEST(ExitStatus, ReadsAnExitCode) {
  const ExitStatus status = ExitStatus::from_wait(79 << 8);
  EXPECT_EQ(status.shell_code(), 79);
  EXPECT_EQ(status.text(), "exited with code 79 (the loss is not finite)");
}

TEST(ExitStatus, ReadsASignal) {
  const ExitStatus status = ExitStatus::from_wait(9);
  EXPECT_EQ(status.shell_code(), 137);
  EXPECT_EQ(status.text(), "was killed by signal 9 (SIGKILL)");
}

TEST(ExitStatus, LeavesCodesWithoutMeaningAlone) {
  EXPECT_EQ(ExitStatus::from_wait(3 << 8).text(), "exited with code 3");
}

}  // namespace
}  // namespace sherd::launch
