// The job file that Slurm gets.

#include "launch/slurm_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sherd/error.h"

namespace sherd::launch {
namespace {

using testing::HasSubstr;
using testing::Not;

SlurmJob job() {
  return {.command = {"/opt/sherd", "train", "my run.toml", "--optim.lr", "1e-5"},
          .nodes = 2,
          .ranks_per_node = 8,
          .cpus_per_rank = 4};
}

std::string fault(const SlurmJob& of) {
  try {
    return slurm_job_file(of);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    return error.what();
  }
}

TEST(SlurmJobFile, RunsTheCommandOnEachTask) {
  SlurmJob with_setup = job();
  with_setup.setup = {"module load gcc"};
  EXPECT_EQ(slurm_job_file(with_setup), R"(#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

module load gcc
# Each task is a rank. The first node's address and a port are taken from the job.
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
srun --cpus-per-task=$SLURM_CPUS_PER_TASK --kill-on-bad-exit=1 /opt/sherd train 'my run.toml' --optim.lr 1e-5
code=$?
if [ $code -eq 75 ]; then        # stopped on request: the same command goes on
    scontrol requeue $SLURM_JOB_ID
fi
exit $code
)");
}

TEST(SlurmJobFile, TestsTheNetworkFirstWhereAsked) {
  SlurmJob tested = job();
  tested.test = {"/opt/sherd", "bandwidth", "--at-least", "5"};
  EXPECT_THAT(slurm_job_file(tested),
              HasSubstr("\nsrun --cpus-per-task=$SLURM_CPUS_PER_TASK --kill-on-bad-exit=1 "
                        "/opt/sherd bandwidth --at-least 5 || exit\nsrun "));
}

TEST(SlurmJobFile, TakesTheUsersOptionsBeforeItsOwn) {
  SlurmJob given = job();
  given.gpus = true;
  given.options = {"--time=1:00:00", "--signal=USR1@60", "--output=x.out"};
  const std::string file = slurm_job_file(given);
  EXPECT_THAT(file, HasSubstr("#SBATCH --gpus-per-node=8\n"));
  EXPECT_THAT(file, HasSubstr("#SBATCH --time=1:00:00\n#SBATCH --signal=USR1@60\n"));
  EXPECT_THAT(file, Not(HasSubstr("TERM@120")));
  EXPECT_THAT(file, Not(HasSubstr("%x-%j")));
}

TEST(SlurmJobFile, QuotesForTheShell) {
  SlurmJob odd = job();
  odd.command = {"it's", "$HOME;ls", ""};
  EXPECT_THAT(slurm_job_file(odd), HasSubstr(R"( 'it'\''s' '$HOME;ls' '')"));
}

TEST(SlurmJobFile, RefusesWhatSlurmCouldNotTake) {
  SlurmJob none = job();
  none.nodes = 0;
  EXPECT_THAT(fault(none), HasSubstr("at least one node"));
  SlurmJob word = job();
  word.options = {"gpu"};
  EXPECT_THAT(fault(word), HasSubstr("'gpu' after -- is no option of sbatch"));
  SlurmJob lines = job();
  lines.options = {"--comment=a\nrm"};
  EXPECT_THAT(fault(lines), HasSubstr("is no option of sbatch"));
  SlurmJob setup = job();
  setup.setup = {"a\nb"};
  EXPECT_THAT(fault(setup), HasSubstr("--setup is one line"));
}

}  // namespace
}  // namespace sherd::launch
