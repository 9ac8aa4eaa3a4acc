// `sherd train` under the real mpirun of Open MPI, where there is one.

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

class Mpirun : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists("/usr/bin/mpirun")) {
      GTEST_SKIP() << "no /usr/bin/mpirun: apt-get install openmpi-bin";
    }
  }

  // Two ranks of this host. mpirun refuses root and more ranks than cores unless it is told.
  [[nodiscard]] Arguments command(const std::string& steps) const {
    return train(output_, steps) + Arguments{"--train.micro_batch", "6", "--log.every_steps", "1"};
  }
  [[nodiscard]] std::unique_ptr<Program> start(const std::string& steps,
                                               const std::string& flags = "") const {
    return std::make_unique<Program>(
        command(steps),
        // Other hosts are not asked for: no ssh is needed.
        Arguments{"HOME=" + folder_.path().string(), "OMPI_MCA_plm_rsh_agent=true"},
        "exec mpirun --allow-run-as-root --oversubscribe -n 2 " + flags + " \"$0\" \"$@\"");
  }

  TempFolder folder_;
  fs::path output_ = folder_.path() / "run";
};

TEST_F(Mpirun, TrainsOnTwoRanks) {
  const Ended ended = start("2")->finish();
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("started by Open MPI"));
  EXPECT_EQ(column(output_, "loss").size(), 2U);
}

// mpirun passes SIGUSR1 on to its ranks; on SIGTERM it kills them after a second.
TEST_F(Mpirun, PassesARequestToStopOn) {
  const auto program = start("5000");
  program->wait_for("step 2/");
  program->signal(SIGUSR1);
  const Ended ended = program->finish();
  EXPECT_EQ(ended.code, 75) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("checkpoint"));
  const auto steps = column(output_, "loss").size();
  EXPECT_GE(steps, 2U);
  EXPECT_LT(steps, 5000U);
  EXPECT_FALSE(fs::is_empty(output_ / "checkpoints"));
}

// Its ranks end by themselves, with nobody left to kill them.
TEST_F(Mpirun, LeavesNoRankWhereItIsKilled) {
  const auto program = start("5000");
  program->wait_for("step 2/");
  program->signal(SIGKILL);
  const Ended ended = program->finish();
  EXPECT_EQ(ended.code, 128 + SIGKILL);
  EXPECT_TRUE(ended.in_time);
  EXPECT_LT(ended.seconds, 5);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  const auto steps = column(output_, "loss").size();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_EQ(column(output_, "loss").size(), steps) << "a rank goes on";
  EXPECT_LT(steps, 5000U);
}

}  // namespace
}  // namespace sherd::test
