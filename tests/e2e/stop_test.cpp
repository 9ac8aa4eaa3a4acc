// A stop keeps what was learned, also where a disk is slow or a rank is late.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Steps that no test waits for.
Arguments endless(const fs::path& output, const std::string& strategy) {
  Arguments run = train(output, "100000") +
                  Arguments{"--parallel.strategy", strategy, "--log.every_steps", "1"};
  if (strategy == "hybrid_shard") {
    run = run + Arguments{"--parallel.shard_size", "2"};
  }
  return run;
}

std::string slow_disk(const std::string& seconds, const std::string& rank) {
  return "LD_PRELOAD=" SHERD_TEST_SLOW_DISK " SLOW_DISK_SECONDS=" + seconds +
         " SLOW_DISK_RANK=" + rank;
}

// The steps whose checkpoints are complete.
std::vector<int> checkpoints_in(const fs::path& output) {
  std::vector<int> steps;
  for (const auto& entry : fs::directory_iterator(output / "checkpoints")) {
    if (fs::exists(entry.path() / "manifest.json") && !entry.path().has_extension()) {
      steps.push_back(std::stoi(entry.path().filename().string().substr(5)));
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

int last_step_in(const fs::path& output) {
  return read_log(output / "log.jsonl").back().at("step").get<int>();
}

void expect_nothing_lost(const Ended& ended, const fs::path& output) {
  EXPECT_TRUE(ended.in_time);
  EXPECT_EQ(ended.code, 75) << ended.out << ended.err;
  EXPECT_EQ(checkpoints_in(output), std::vector<int>{last_step_in(output)});
  EXPECT_THAT(ended.out, HasSubstr("summary: stopped"));
  EXPECT_THAT(ended.out, Not(HasSubstr("summary: failed")));
}

class Stop : public testing::TestWithParam<std::tuple<std::string, int>> {};

// A writer that takes 5 s for each write and each fsync of a file, and a rank that is 4 s late.
TEST_P(Stop, OnASlowDiskWithALateRankKeepsTheStep) {
  const auto& [strategy, ranks] = GetParam();
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const std::string slow = slow_disk("5", "0");
  Program program(on_ranks(ranks, endless(output, strategy)), {"SHERD_TIMEOUT=20"},
                  "exec env " + slow + " \"$0\" \"$@\"");
  program.wait_for("step 2/");
  const auto pids = program.children();
  ASSERT_EQ(pids.size(), static_cast<std::size_t>(ranks));
  program.signal(SIGSTOP, pids[1]);
  program.signal(SIGTERM);
  ::usleep(4'000'000);
  program.signal(SIGCONT, pids[1]);
  const Ended ended = program.finish();
  expect_nothing_lost(ended, output);
  EXPECT_GT(ended.seconds, 10);  // the disk was slow indeed
}

INSTANTIATE_TEST_SUITE_P(Strategies, Stop,
                         testing::Values(std::tuple("no_shard", 2), std::tuple("full_shard", 2),
                                         std::tuple("hybrid_shard", 4)),
                         [](const auto& one) { return std::get<0>(one.param); });

// One write takes longer than the timeout: the ranks that wait see that it is a phase of its own.
TEST(StopWithAShortTimeout, WaitsForAWriteThatIsLongerThanIt) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program program(on_ranks(2, endless(output, "full_shard")), {"SHERD_TIMEOUT=4"},
                  "exec env " + slow_disk("6", "1") + " \"$0\" \"$@\"");
  program.wait_for("step 2/");
  program.signal(SIGTERM);
  expect_nothing_lost(program.finish(), output);
}

// The launcher's own deadline is shorter than the save.
TEST(StopWithADeadline, SaysWhichStepsAreLost) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program program(Arguments{"launch", "-n", "2", "--grace", "6"} + endless(output, "full_shard"),
                  {}, "exec env " + slow_disk("60", "1") + " \"$0\" \"$@\"");
  program.wait_for("step 2/");
  program.signal(SIGTERM);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 74) << ended.out << ended.err;
  EXPECT_TRUE(checkpoints_in(output).empty());
  EXPECT_THAT(ended.err, HasSubstr("was asked to stop within 6 s and "));
  EXPECT_THAT(ended.err,
              testing::ContainsRegex("steps 1 to [0-9]+ are lost: no checkpoint has them"));
}

// A rank hangs for good: the others end at the timeout, and the stop has lost steps.
TEST(StopWithASilentRank, IsNoStopThatSaved) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program program(on_ranks(2, endless(output, "full_shard")), {"SHERD_TIMEOUT=4"});
  program.wait_for("step 2/");
  const auto pids = program.children();
  ASSERT_EQ(pids.size(), 2U);
  program.signal(SIGSTOP, pids[1]);
  program.signal(SIGTERM);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 74) << ended.out << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("asked to stop, and steps 1 to "));
  EXPECT_THAT(ended.err, HasSubstr(" could not be saved and are lost: "));
  EXPECT_THAT(ended.err, HasSubstr("issing rank 1"));
  EXPECT_THAT(ended.out, Not(HasSubstr("summary: failed")));
}

// All ranks of a run, and its launcher, are suspended for longer than the timeout.
TEST(SuspendedRun, GoesOn) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program program(on_ranks(2, endless(output, "full_shard")), {"SHERD_TIMEOUT=4"});
  program.wait_for("step 2/");
  for (int times = 0; times < 2; ++times) {
    ::kill(-program.pid(), SIGSTOP);
    ::usleep(6'000'000);
    ::kill(-program.pid(), SIGCONT);
    ::usleep(1'000'000);
  }
  program.signal(SIGTERM);
  expect_nothing_lost(program.finish(), output);
}

// How long before its time limit the job file of a run asks for a stop.
int stop_before(const Arguments& more, const fs::path& output) {
  const Arguments job = Arguments{"slurm",          SHERD_TEST_SOURCE_DIR "/tests/e2e/base.toml",
                                  "--data.train",   kQuestions,
                                  "--train.output", output.string()} +
                        more;
  const Ended ended =
      Program(job, {}, "exec env " + slow_disk("5", "") + " \"$0\" \"$@\"").finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
  const std::string mark = "#SBATCH --signal=TERM@";
  const std::size_t at = ended.out.find(mark);
  return at == std::string::npos ? 0 : std::atoi(ended.out.c_str() + at + mark.size());
}

// A checkpoint of 300 MB on a disk that takes 5 s for 8 MiB; and one of 3 MB.
TEST(StopOfAJob, IsAskedForAsEarlyAsItsSaveNeeds) {
  const TempFolder folder;
  const fs::path slow = folder.path() / "checkpoints" / "run";
  fs::create_directories(slow.parent_path());
  const Arguments wide = {"--model.path", "recipes/models/wide-bloom", "--model.init", "random"};
  EXPECT_GT(stop_before(wide, slow), 300);
  EXPECT_EQ(stop_before(wide + Arguments{"--stop-before", "7"}, slow), 7);
  EXPECT_EQ(stop_before({"--model.path", kModel}, folder.path() / "run"), 120);
}

}  // namespace
}  // namespace sherd::test
