// The job file that Slurm gets.

#include "launch/slurm_job.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "sherd/error.h"
#include "tests/support/temp_folder.h"

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
  SlurmJob whole = job();
  whole.setup = {"module load gcc"};
  whole.checkpoints = "my runs/checkpoints";
  whole.code_file = "my.code";
  EXPECT_EQ(slurm_job_file(whole), R"job(#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --distribution=block
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

module load gcc
# Each task is a rank. Rank 0 is on the first node, whose name all ranks find in the job's list.
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
for try in {1..100}; do
    export MASTER_PORT=$((10000 + RANDOM % 20000))
    listens=":$(printf %04X $MASTER_PORT) [0-9A-F:]* 0A "
    grep -q "$listens" /proc/net/tcp /proc/net/tcp6 2>/dev/null || break
done
newest() { ls 'my runs/checkpoints'/step-*[0-9]/manifest.json 2>/dev/null | tail -n 1; }
before=$(newest)
srun --cpus-per-task=$SLURM_CPUS_PER_TASK --kill-on-bad-exit=0 --wait=600 /opt/sherd train 'my run.toml' --optim.lr 1e-5
code=$?
# 75: stopped on request. 76: a node or a rank was lost. The same command resumes.
if [ $code -eq 75 ] || { [ $code -eq 76 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 5 ]; }; then
    if [ "$(newest)" = "$before" ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
        echo "stopped twice without a checkpoint in between, not queued again: is the time limit shorter than a step and a save?" >&2
    else
        scontrol requeue $SLURM_JOB_ID
        exit $code
    fi
fi
echo $code > my.code
exit $code
)job");
}

TEST(SlurmJobFile, TestsTheNetworkFirstWhereAsked) {
  SlurmJob tested = job();
  tested.test = {"/opt/sherd", "bandwidth", "--at-least", "5"};
  EXPECT_THAT(slurm_job_file(tested),
              HasSubstr(" /opt/sherd bandwidth --at-least 5\ncode=$?\nif [ $code -eq 0 ]; then\n"
                        "    srun --cpus-per-task=$SLURM_CPUS_PER_TASK --kill-on-bad-exit=0 "
                        "--wait=600 /opt/sherd train "));
}

/// A folder in which job files run by the shell, with an srun and an scontrol that note what they
/// are asked.
class Played : public testing::Test {
 protected:
  Played() {
    command("srun", "shift 3; \"$@\"");
    command("scontrol", "echo \"$@\" >> " + in("asked"));
  }
  void command(const std::string& name, const std::string& line) const {
    const std::string file = folder_.write(name, "#!/bin/bash\n" + line + "\n");
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  [[nodiscard]] std::string in(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(in(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// The exit code of the job file.
  int play(const SlurmJob& of, int restarts = 0) const {
    const std::string file = folder_.write("job", slurm_job_file(of));
    const std::string line = "PATH=" + folder_.path().string() +
                             ":$PATH SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=1 SLURM_RESTART_COUNT=" +
                             std::to_string(restarts) + " bash " + file + " 2> " + in("said");
    return WEXITSTATUS(std::system(line.c_str()));
  }
  [[nodiscard]] SlurmJob that_ends_with(const std::string& line) const {
    SlurmJob played = job();
    played.command = {"bash", "-c", line};
    played.checkpoints = in("checkpoints");
    played.code_file = in("code");
    return played;
  }

 private:
  test::TempFolder folder_;
};

TEST_F(Played, AsksToBeQueuedAgainWhereTheRunStopped) {
  EXPECT_EQ(play(that_ends_with("exit 75")), 75);
  EXPECT_EQ(read("asked"), "requeue 7\n");
  EXPECT_EQ(read("code"), "");
}

TEST_F(Played, LeavesTheCodeOfARunThatFailed) {
  EXPECT_EQ(play(that_ends_with("exit 79")), 79);
  EXPECT_EQ(read("asked"), "");
  EXPECT_EQ(read("code"), "79\n");
}

// A time limit that is shorter than the first step would queue the job for ever.
TEST_F(Played, IsNotQueuedAgainWithoutEnd) {
  EXPECT_EQ(play(that_ends_with("exit 75"), 1), 75);
  EXPECT_EQ(read("asked"), "");
  EXPECT_EQ(read("code"), "75\n");
  EXPECT_THAT(read("said"), HasSubstr("stopped twice without a checkpoint in between"));
  const std::string saves = "mkdir -p " + in("checkpoints/step-00000003") + " && touch " +
                            in("checkpoints/step-00000003/manifest.json") + "; exit 75";
  EXPECT_EQ(play(that_ends_with(saves), 1), 75);
  EXPECT_EQ(read("asked"), "requeue 7\n");
}

TEST_F(Played, EndsWithATestThatFails) {
  SlurmJob tested = that_ends_with("touch " + in("trained"));
  tested.test = {"false"};
  EXPECT_EQ(play(tested), 1);
  EXPECT_FALSE(std::filesystem::exists(in("trained")));
  tested.test = {"true"};
  EXPECT_EQ(play(tested), 0);
  EXPECT_TRUE(std::filesystem::exists(in("trained")));
  EXPECT_EQ(read("code"), "0\n");
}

TEST_F(Played, TellsTheRanksAFreePort) {
  EXPECT_EQ(play(that_ends_with("echo $MASTER_PORT > " + in("port"))), 0);
  const int port = std::stoi(read("port"));
  EXPECT_GE(port, 10000);
  EXPECT_LT(port, 30000);
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

TEST(SlurmJobFile, QuotesForSbatch) {
  SlurmJob odd = job();
  odd.options = {"--constraint=a100 & ib", "--comment=x#y", R"(--wckey=it's "7\8")", "--time=1:00"};
  EXPECT_THAT(slurm_job_file(odd), HasSubstr(R"(
#SBATCH --constraint="a100 & ib"
#SBATCH --comment="x#y"
#SBATCH --wckey="it's \"7\\8\""
#SBATCH --time=1:00
)"));
}

TEST(SlurmJobFile, NamesHoldWhatFileNamesMay) {
  EXPECT_EQ(slurm_job_name("bob's run/2"), "bob_s_run_2");
  EXPECT_EQ(slurm_job_name("lr=1e-4.x_Y"), "lr=1e-4.x_Y");
  EXPECT_EQ(slurm_job_name(""), "sherd");
}

TEST(SlurmJobFile, RefusesWhatSlurmCouldNotTake) {
  SlurmJob none = job();
  none.nodes = 0;
  EXPECT_THAT(fault(none), HasSubstr("at least one node"));
  SlurmJob word = job();
  word.options = {"gpu"};
  EXPECT_THAT(fault(word), HasSubstr("'gpu' after -- is not an option of sbatch"));
  SlurmJob lines = job();
  lines.options = {"--comment=a\nrm"};
  EXPECT_THAT(fault(lines), HasSubstr("is not an option of sbatch"));
  lines.options = {"--comment=a\tb"};
  EXPECT_THAT(fault(lines), HasSubstr("is not an option of sbatch"));
  lines.options = {"--comment=" + std::string(5000, 'x')};
  EXPECT_THAT(fault(lines), HasSubstr("is longer than sbatch reads"));
  SlurmJob setup = job();
  setup.setup = {"a\nb"};
  EXPECT_THAT(fault(setup), HasSubstr("--setup is one line"));
}

}  // namespace
}  // namespace sherd::launch
