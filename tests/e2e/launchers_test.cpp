// The same `sherd train` under the environments of other launchers: two processes that meet.

#include "launch/loopback_socket.h"
#include "launch/spinning.h"
#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// A port that was free a moment ago.
std::string free_port() {
  return std::to_string(launch::listen_on_loopback({}).port);
}

// A line of the shell's, whose $0 is the program.
Ended run_shell(const std::string& line) {
  return Program(Arguments{}, {}, line).finish();
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
  EXPECT_THAT(first.out, HasSubstr("exchange between ranks: shared memory\n"));
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

TEST(OwnRanks, AreStartedByTheVerbItself) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Ended ended =
      expect_code(0, train(output, "2") + Arguments{"-n", "2", "--train.micro_batch", "3"});
  EXPECT_THAT(ended.out, HasSubstr("2 ranks"));
  EXPECT_EQ(column(output, "loss").size(), 2U);
}

TEST(OwnRanks, MustBeThoseOfTheLauncher) {
  const TempFolder folder;
  const Ended ended =
      expect_code(64, on_ranks(2, train(folder.path() / "run") + Arguments{"-n", "3"}));
  EXPECT_THAT(ended.err,
              HasSubstr("-n 3 asks for another number of ranks than the 2 that sherd launch "
                        "started: leave -n out"));
  for (const char* wrong : {"0", "1025", "x", "99999999999999999999"}) {
    const Ended refused = expect_code(64, train(folder.path() / "run") + Arguments{"-n", wrong});
    EXPECT_THAT(refused.err, HasSubstr("is not a number of ranks: give one from 1 to 1024"));
  }
}

TEST(SherdLaunch, StartsAnyProgram) {
  const Ended ended =
      expect_code(0, {"launch", "-n", "2", "--", "sh", "-c",
                      "echo rank $RANK of $WORLD_SIZE; echo \"<$1>\"", "--train.x", "-n 7"});
  EXPECT_THAT(ended.out, HasSubstr("rank 0 of 2\n"));
  EXPECT_THAT(ended.out, HasSubstr("rank 1 of 2\n"));
  EXPECT_THAT(ended.out, HasSubstr("<-n 7>\n"));
  const Ended other = expect_code(64, {"launch", "-n", "2", "./my_program"});
  EXPECT_THAT(other.err, HasSubstr("sherd launch -n 2 -- ./my_program; got './my_program'"));
}

TEST(SherdLaunch, HelpAndFaultsAreReadOnce) {
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(count(expect_code(0, {"launch", "-n", "2", "train", "--help"}).out,
                  "sherd train [OPTIONS] RECIPE.toml [--section.key VALUE ...]"),
            1);
  const TempFolder folder;
  const Ended ended = expect_code(66, {"launch", "-n", "3", "eval", "--model",
                                       (folder.path() / "none").string(), "--data", kQuestions});
  EXPECT_EQ(count(ended.err, "sherd: "), 1) << ended.err;
  EXPECT_EQ(count(ended.err, "sherd launch: "), 1 + (ended.err.find("share") != std::string::npos))
      << ended.err;
  EXPECT_THAT(ended.err, HasSubstr(" exited with code 66 (an input is missing)\n"));
}

TEST(SherdLaunch, RefusesWhatNoRankCouldDoBeforeItStartsOne) {
  const TempFolder folder;
  const Arguments run = train(folder.path() / "run");
  for (const Arguments& start : {on_ranks(5, run), run + Arguments{"-n", "5"}}) {
    const Ended ended = expect_code(64, start);
    EXPECT_EQ(ended.err,
              "sherd: train.global_batch = 12 is not a multiple of 5 (5 ranks x "
              "train.micro_batch = 1): set train.global_batch = 10 or 15\n");
    EXPECT_EQ(ended.out, "");
  }
  const Arguments wrong = run + Arguments{"--train.learning_rate", "1e-5"};
  for (const Arguments& start : {on_ranks(2, wrong), wrong + Arguments{"-n", "2"}}) {
    EXPECT_EQ(expect_code(64, start).err,
              "sherd: --train.learning_rate: unknown flag; here it is --optim.lr\n");
  }
}

TEST(SherdLaunch, RefusesMoreRanksThanTheCoresCanServe) {
  const int most = 8 * sherd::launch::usable_cores();
  if (most + 1 > 1024) {
    GTEST_SKIP() << "more than 1024 ranks are refused in any case";
  }
  const TempFolder folder;
  const std::string many = std::to_string(most + 1);
  const Arguments eval = {"eval", kModel, "--data", kQuestions, "-n", many};
  const Arguments bench = {"bench", "--model", kModel, "--ranks", many};
  const Arguments run = train(folder.path() / "run") + Arguments{"-n", many};
  for (const Arguments& start : {eval, bench, run, on_ranks(most + 1, {"bandwidth"})}) {
    const Ended ended = expect_code(64, start);
    EXPECT_THAT(ended.err, HasSubstr("sherd: " + many + " ranks are too many for the "));
    EXPECT_THAT(ended.err, HasSubstr("Give at most " + std::to_string(most) +
                                     ", or start them all the same with sherd launch -n " + many +
                                     " --oversubscribe."));
  }
  if (most > 32) {
    return;  // enough processes
  }
  // With the flag they start; the missing model ends them.
  const Ended ended = expect_code(66, {"launch", "-n", many, "--oversubscribe", "eval", "--model",
                                       (folder.path() / "none").string(), "--data", kQuestions});
  EXPECT_THAT(ended.err, Not(HasSubstr("too many")));
}

TEST(Limits, OnDescriptorsAreNamed) {
  for (const char* limit : {"8", "16", "24", "40"}) {
    const Ended ended = run_shell("ulimit -n " + std::string(limit) + "; exec \"$0\" --version");
    EXPECT_EQ(ended.code, 69) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("this process may hold " + std::string(limit) +
                                     " files and connections open, and needs 64"));
  }
}

TEST(Limits, OnThreadsAreNamed) {
  const TempFolder folder;
  const Ended ended = run_shell("ulimit -v 6000000; exec \"$0\" bench --model " + kModel +
                                " --threads 1024 --steps 1");
  EXPECT_EQ(ended.code, 69) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("cannot start 1024 threads, only "));
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

TEST(Cases, N2InAShellUnderSrun) {
  const std::string folder = SHERD_TEST_SOURCE_DIR "/tests/data/cases/n2-in-a-shell-under-srun/";
  const std::vector<Arguments> shells = {
      {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=1",
       "SLURM_STEP_NUM_TASKS=1", "SLURM_LOCALID=0", "SLURM_STEP_NODELIST=n1",
       "SLURM_STEP_TASKS_PER_NODE=1"},
      {"RANK=0", "WORLD_SIZE=1"},
  };
  for (const Arguments& shell : shells) {
    const TempFolder output;
    const Ended ended =
        expect_code(0,
                    {"train", "-n", "2", "--model.path", folder + "tiny", "--data.train",
                     folder + "data.jsonl", "--train.output", (output.path() / "run").string(),
                     "--train.max_steps", "2", "--train.global_batch", "2"},
                    shell);
    EXPECT_EQ(nlohmann::json::parse(read_file(output.path() / "run" / "plan.json")).at("ranks"), 2)
        << ended.out;
  }
}

}  // namespace
}  // namespace sherd::test
