// The same `sherd train` under the environments of other launchers: two processes that meet.

#include "launch/loopback_socket.h"
#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

// A port that was free a moment ago.
std::string free_port() {
  return std::to_string(launch::listen_on_loopback({}).port);
}

// The variables of one of two ranks.
using Environment = std::function<Arguments(const std::string& rank)>;

void expect_two_ranks(const Environment& environment, const std::string& launcher) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments arguments = train(output, "2") + Arguments{"--train.micro_batch", "3"};
  Program one(arguments, environment("1"));
  Program zero(arguments, environment("0"));
  const Ended first = zero.finish();
  const Ended second = one.finish();
  EXPECT_EQ(first.code, 0) << first.out << first.err;
  EXPECT_EQ(second.code, 0) << second.out << second.err;
  EXPECT_THAT(first.out, HasSubstr("2 ranks"));
  EXPECT_THAT(first.out, HasSubstr("started by " + launcher));
  EXPECT_EQ(second.out, "");  // rank 0 speaks for all
  EXPECT_EQ(column(output, "loss").size(), 2U);
}

TEST(Launchers, Torchrun) {
  const std::string port = free_port();
  expect_two_ranks(
      [&](const std::string& rank) {
        return Arguments{"RANK=" + rank,       "LOCAL_RANK=" + rank,    "WORLD_SIZE=2",
                         "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port};
      },
      "torchrun");
}

TEST(Launchers, SlurmStep) {
  const std::string port = free_port();
  expect_two_ranks(
      [&](const std::string& rank) {
        return Arguments{"SLURM_JOB_ID=77",      "SLURM_STEP_ID=0",
                         "SLURM_PROCID=" + rank, "SLURM_LOCALID=" + rank,
                         "SLURM_NTASKS=2",       "SLURM_STEP_NUM_TASKS=2",
                         "SLURM_NODEID=0",       "SLURM_STEP_TASKS_PER_NODE=2",
                         "SLURM_NODELIST=node7", "MASTER_ADDR=127.0.0.1",
                         "MASTER_PORT=" + port};
      },
      "Slurm");
}

TEST(Launchers, OpenMpi) {
  const std::string port = free_port();
  expect_two_ranks(
      [&](const std::string& rank) {
        return Arguments{"OMPI_COMM_WORLD_RANK=" + rank, "OMPI_COMM_WORLD_SIZE=2",
                         "OMPI_COMM_WORLD_LOCAL_RANK=" + rank, "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                         "MASTER_PORT=" + port};
      },
      "Open MPI");
}

TEST(Launchers, HalfAnEnvironmentIsRefused) {
  const TempFolder folder;
  const Ended ended = expect_code(64, train(folder.path() / "run"), {"RANK=0"});
  EXPECT_THAT(ended.err, HasSubstr("RANK=0 is set, but WORLD_SIZE is not"));
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
}

// Where no launcher watches, the lost connection tells the survivor.
TEST(Launchers, ALostPeerEndsTheSurvivorWith76) {
  const TempFolder folder;
  const std::string port = free_port();
  const auto environment = [&](const std::string& rank) {
    return Arguments{"RANK=" + rank, "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                     "MASTER_PORT=" + port};
  };
  const Arguments arguments =
      train(folder.path() / "run", "5000") + Arguments{"--train.micro_batch", "6"};
  Program one(arguments, environment("1"));
  Program zero(arguments, environment("0"));
  zero.wait_for("step 2/");
  one.signal(SIGKILL);
  const Ended survivor = zero.finish();
  EXPECT_EQ(survivor.code, 76) << survivor.err;
}

}  // namespace
}  // namespace sherd::test
