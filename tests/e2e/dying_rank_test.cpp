// What becomes of a run when a rank or its launcher dies, or a rank fails.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

// Far more steps than a test waits for.
Arguments long_run(const fs::path& output) {
  return train(output, "5000") + Arguments{"--train.micro_batch", "6", "--log.every_steps", "1"};
}

bool alive(pid_t pid) {
  return ::kill(pid, 0) == 0;
}

TEST(DyingRank, EndsTheOthersAndIsNamed) {
  const TempFolder folder;
  Program program(on_ranks(2, long_run(folder.path() / "run")));
  program.wait_for("step 2/");
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 2U);
  program.signal(SIGKILL, ranks[1]);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 128 + SIGKILL) << ended.err;
  EXPECT_LT(ended.seconds, 5);
  EXPECT_THAT(ended.err, HasSubstr("rank 1"));
  EXPECT_THAT(ended.err, HasSubstr("killed by signal 9"));
  EXPECT_FALSE(alive(ranks[0]) || alive(ranks[1]));
}

// The verb on two ranks under `sherd launch` with flags of the launcher's own.
Arguments launched(const Arguments& flags, const Arguments& verb) {
  return Arguments{"launch", "-n", "2"} + flags + verb;
}

// A stopped rank lives, and is silent.
TEST(SilentRank, EndsTheRunWith80AtTheTimeout) {
  const TempFolder folder;
  Program program(launched({"--timeout", "4"}, long_run(folder.path() / "run")));
  program.wait_for("step 2/");
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 2U);
  program.signal(SIGSTOP, ranks[1]);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 80) << ended.err;
  EXPECT_LT(ended.seconds, 20);
  EXPECT_THAT(ended.err, HasSubstr("issing rank 1"));
  EXPECT_FALSE(alive(ranks[0]) || alive(ranks[1]));
}

// The timeout is far away; a request to stop does not wait for it.
TEST(SilentRank, DoesNotKeepARequestToStopWaiting) {
  const TempFolder folder;
  Program program(launched({"--timeout", "60", "--grace", "2"}, long_run(folder.path() / "run")));
  program.wait_for("step 2/");
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 2U);
  program.signal(SIGSTOP, ranks[1]);
  program.signal(SIGTERM);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 74) << ended.err;
  EXPECT_LT(ended.seconds, 30);
  EXPECT_THAT(ended.err, HasSubstr("rank 0 was asked to stop within 2 s and "));
  EXPECT_THAT(ended.err, HasSubstr(" are lost: no checkpoint has them"));
  EXPECT_THAT(ended.err, HasSubstr("rank 1 did not stop within "));
  EXPECT_FALSE(alive(ranks[0]) || alive(ranks[1]));
}

TEST(StopAtTheStart, GivesTrain75) {
  const TempFolder folder;
  Program program(on_ranks(2, long_run(folder.path() / "run")));
  while (program.children().size() < 2) {
    ::usleep(1000);
  }
  program.signal(SIGINT);  // its ranks load their libraries
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 75) << ended.err;
}

TEST(StopOfAVerbThatSavesNothing, EndsItAtOnce) {
  const Arguments verb = {"eval", "--model", kModel, "--data", kQuestions, "--batch", "1"};
  for (const int signal : {SIGTERM, SIGINT}) {
    Program program(on_ranks(2, verb));
    program.wait_for("questions");
    program.signal(signal);
    const Ended ended = program.finish();
    EXPECT_EQ(ended.code, 128 + signal) << ended.err;
    EXPECT_LT(ended.seconds, 5);
  }
}

TEST(DyingLauncher, LeavesNoOrphan) {
  const TempFolder folder;
  Program program(on_ranks(2, long_run(folder.path() / "run")));
  program.wait_for("step 2/");
  ASSERT_EQ(program.children().size(), 2U);
  program.signal(SIGKILL);
  const Ended ended = program.finish();  // ends when no rank holds the output any more
  EXPECT_TRUE(ended.in_time);
  EXPECT_EQ(ended.code, 128 + SIGKILL);
  EXPECT_LT(ended.seconds, 5);
}

TEST(FailingRank, GivesItsOwnCodeToTheLauncher) {
  const TempFolder folder;
  // The log is rank 0's alone: the other rank loads the model and waits.
  const Ended ended =
      expect_code(73, on_ranks(2, long_run(folder.path() / "run")) +
                          Arguments{"--log.jsonl", folder.path() / "no" / "log.jsonl"});
  EXPECT_THAT(ended.err, HasSubstr("cannot write the log"));
  EXPECT_THAT(ended.err, HasSubstr("2 of 2 ranks exited with code 73"));
  EXPECT_FALSE(fs::exists(folder.path() / "no"));
}

}  // namespace
}  // namespace sherd::test
