#include "launch/supervisor.h"

#include <algorithm>
#include <csignal>
#include <sstream>

#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/loopback_socket.h"
#include "launch/rank_process.h"
#include "launch/spinning.h"
#include "sherd/error.h"
#include "tests/launch/child.h"

namespace sherd::launch::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr seconds kAllGone{5};  ///< the promise after a death

std::vector<std::string> launch(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {actor(), "launch"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

Outcome run(const std::vector<std::string>& arguments, std::vector<std::string> variables = {}) {
  return Child(launch(arguments), std::move(variables)).finish();
}

TEST(Supervisor, ReturnsZeroWhenAllRanksDo) {
  const Outcome outcome = run({std::to_string(usable_cores())});
  EXPECT_EQ(outcome.status.shell_code(), 0);
  EXPECT_EQ(outcome.err, "");
}

TEST(Supervisor, SaysWhereCoresAreFewerThanRanks) {
  const std::string cores = std::to_string(usable_cores());
  const std::string ranks = std::to_string(usable_cores() + 1);
  const Outcome outcome = run({ranks});
  EXPECT_EQ(outcome.status.shell_code(), 0);
  EXPECT_THAT(outcome.err, HasSubstr("sherd launch: " + ranks + " ranks share " + cores + " core"));
  EXPECT_THAT(outcome.err, HasSubstr("-n " + cores + " gives each a core of its own\n"));
}

TEST(Supervisor, LetsAllRanksAnswerNo) {
  const Outcome outcome = run({"2", "grace=20", "0=answer-late:500", "1=exit:1"});
  EXPECT_EQ(outcome.status.shell_code(), 1);
  EXPECT_THAT(outcome.out, HasSubstr("the answer is no"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank ")));
  // Of a program of the user's it may mean anything.
  EXPECT_THAT(run({"2", "0=watch", "1=exit:1"}).err, HasSubstr("rank 1 exited with code 1"));
}

TEST(Supervisor, AnAnswerOfNoHidesNoFailure) {
  EXPECT_EQ(run({"2", "grace=20", "0=exit:1", "1=exit:79"}).status.shell_code(), 79);
  EXPECT_EQ(run({"2", "grace=1", "0=exit:1", "1=deaf"}).status.shell_code(), 1);
}

TEST(Supervisor, TellsEachRankWhoItIs) {
  const Outcome outcome = run({"2", "0=variables", "1=variables"},
                              {"TORCHELASTIC_USE_AGENT_STORE=True", "RANK=9", "WORLD_SIZE=10",
                               "OMP_NUM_THREADS=3", "SHERD_MASTER_FD=99"});
  EXPECT_EQ(outcome.status.shell_code(), 0) << outcome.err;
  for (const std::string rank : {"0", "1"}) {
    EXPECT_THAT(outcome.out,
                HasSubstr("RANK=" + rank + " WORLD_SIZE=2 LOCAL_RANK=" + rank +
                          " LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=3 "
                          "TORCHELASTIC_USE_AGENT_STORE=(unset) master_fd=" +
                          (rank == "0" ? "yes" : "no") + "\n"));
  }
}

TEST(Supervisor, CountsTheRanksOfAllHosts) {
  const Outcome outcome =
      run({"2", "host=1/3@host0:29501", "2=variables", "3=variables"}, {"OMP_NUM_THREADS=3"});
  EXPECT_EQ(outcome.status.shell_code(), 0) << outcome.err;
  for (const int local : {0, 1}) {
    EXPECT_THAT(outcome.out, HasSubstr("RANK=" + std::to_string(2 + local) +
                                       " WORLD_SIZE=6 LOCAL_RANK=" + std::to_string(local) +
                                       " LOCAL_WORLD_SIZE=2 MASTER_ADDR=host0 "));
  }
}

TEST(Supervisor, OfAHostNamesItsRanksByTheirNumberInTheRun) {
  const Outcome outcome = run({"2", "host=1/2@host0:29501", "2=watch", "3=exit:65"});
  EXPECT_EQ(outcome.status.shell_code(), 65);
  EXPECT_THAT(outcome.err, HasSubstr("sherd launch: rank 3 exited with code 65"));
}

TEST(Supervisor, RefusesHostsThatCannotBe) {
  for (const char* const host : {"host=2/2@host0:1", "host=-1/2@host0:1", "host=0/0@host0:1"}) {
    EXPECT_EQ(run({"1", host}).status.shell_code(), static_cast<int>(ExitCode::Usage)) << host;
  }
  EXPECT_THAT(run({"1", "host=0/2@:1"}).err, HasSubstr("--master-addr"));
}

TEST(Supervisor, SharesTheCores) {
  cpu_set_t cores;
  ASSERT_EQ(::sched_getaffinity(0, sizeof cores, &cores), 0);
  for (const int ranks : {1, 2, 5}) {
    EXPECT_THAT(run({std::to_string(ranks), "0=variables"}).out,
                HasSubstr("OMP_NUM_THREADS=" +
                          std::to_string(std::max(1, CPU_COUNT(&cores) / ranks)) + " "));
  }
}

TEST(Supervisor, HandsRankZeroTheListeningSocket) {
  EXPECT_EQ(run({"4", "0=meet", "1=meet", "2=meet", "3=meet"}).status.shell_code(), 0);
}

TEST(Supervisor, TakesThePortItIsGiven) {
  const std::uint16_t port = listen_on_loopback(std::nullopt).port;
  const Outcome outcome = run({"2", "port=" + std::to_string(port), "0=meet", "1=meet"});
  EXPECT_EQ(outcome.status.shell_code(), 0) << outcome.err;
}

/// How often `part` stands in `text`.
int times(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(Supervisor, RefusesAPortInUse) {
  const LoopbackSocket taken = listen_on_loopback(std::nullopt);
  const Outcome outcome = run({"2", "port=" + std::to_string(taken.port), "0=deaf", "1=deaf"});
  EXPECT_EQ(outcome.status.shell_code(), 69);
  EXPECT_THAT(outcome.err, HasSubstr("cannot listen on 127.0.0.1 port " +
                                     std::to_string(taken.port) + ": Address already in use"));
}

TEST(Supervisor, RefusesWhatItCannotStart) {
  EXPECT_EQ(run({"0"}).status.shell_code(), 64);
  EXPECT_THAT(run({"1025"}).err,
              HasSubstr("cannot launch 1025 ranks: give a number from 1 to 1024"));
  const Outcome outcome = run({"2", "command=/no/such/program"});
  EXPECT_EQ(outcome.status.shell_code(), 66);
  EXPECT_THAT(outcome.err, HasSubstr("cannot execute /no/such/program: No such file"));
  EXPECT_THROW(static_cast<void>(supervise({})), Error);
}

TEST(Supervisor, AKilledRankEndsTheOthers) {
  Child launcher(launch({"3", "0=watch", "1=watch", "2=watch"}));
  const auto pids = launcher.ranks(3);
  ::kill(pids[1], SIGKILL);
  const Outcome outcome = launcher.finish(kAllGone);
  EXPECT_EQ(outcome.status.shell_code(), 137);
  EXPECT_THAT(outcome.err, HasSubstr("sherd launch: rank 1 was killed by signal 9 (SIGKILL); "
                                     "ending the other ranks\n"));
  EXPECT_EQ(times(outcome.err,
                  "peer lost: rank 1 was killed by signal 9 (SIGKILL); stopping (exit 76)\n"),
            1)
      << outcome.err;
  EXPECT_THAT(
      outcome.err,
      HasSubstr("sherd launch: rank 1 was killed by signal 9 (SIGKILL). If nobody killed it, the "
                "system may have run out of memory: see dmesg. It printed nothing before that.\n"));
}

TEST(Supervisor, ReturnsTheDeadRanksOwnCode) {
  const Outcome outcome = run({"3", "0=watch", "1=watch", "2=exit:79"});
  EXPECT_EQ(outcome.status.shell_code(), 79);
  EXPECT_THAT(outcome.err, HasSubstr("rank 2 exited with code 79 (the loss is not finite)"));
}

TEST(Supervisor, ReturnsTheSignalOfACrash) {
  EXPECT_EQ(run({"2", "0=watch", "1=raise:11"}).status.shell_code(), 128 + SIGSEGV);
  EXPECT_EQ(run({"2", "0=raise:6", "1=watch"}).status.shell_code(), 128 + SIGABRT);
}

TEST(Supervisor, ASurvivorNeverHidesTheCause) {
  // Rank 1 leaves as a survivor before the one that matters.
  const Outcome outcome = run({"2", "0=exit-on-news:70", "1=exit:76"});
  EXPECT_EQ(outcome.status.shell_code(), 70);
  EXPECT_THAT(outcome.err, HasSubstr("sherd launch: rank 0 exited with code 70 (a bug of Sherd)."));
  EXPECT_EQ(run({"2", "0=exit:76", "1=exit:76"}).status.shell_code(), 76);
}

TEST(Supervisor, TheFirstDeathIsTheCause) {
  EXPECT_EQ(run({"2", "0=exit-on-news:70", "1=exit:79"}).status.shell_code(), 79);
}

TEST(Supervisor, KillsSurvivorsThatDoNotLeave) {
  Child launcher(launch({"2", "0=deaf", "1=watch"}));
  const auto pids = launcher.ranks(2);
  ::kill(pids[1], SIGKILL);
  const Outcome outcome = launcher.finish(kAllGone);
  EXPECT_EQ(outcome.status.shell_code(), 137);
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 did not stop within 3 s and was killed\n"));
}

TEST(Supervisor, PassesStandardErrorOnAndRepeatsTheLastWords) {
  const Outcome outcome = run({"2", "0=say:0", "1=say:65"});
  EXPECT_EQ(outcome.status.shell_code(), 65);
  EXPECT_THAT(outcome.err, HasSubstr("[rank 1] line 1\n"));
  EXPECT_THAT(outcome.err, HasSubstr("[rank 1] line 12\n"));
  EXPECT_THAT(outcome.err,
              ::testing::AnyOf(HasSubstr("\nline 1\n"), ::testing::StartsWith("line 1\n")));
  EXPECT_THAT(outcome.err, HasSubstr("sherd launch: rank 1 exited with code 65 (a data or model "
                                     "file is wrong). Its last output:\n  | line 3\n  | line 4\n"));
  EXPECT_THAT(outcome.err, ::testing::EndsWith("  | line 12\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("  | line 2\n")));
}

TEST(Supervisor, ItsOwnKillIsNeverTheCause) {
  const Outcome outcome = run({"2", "0=deaf", "1=exit:76"});
  EXPECT_EQ(outcome.status.shell_code(), 76) << outcome.err;
}

/// Waits until a process that is not our child has ended.
void wait_for_end(pid_t pid) {
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd event{process.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&event, 1, 1000 * static_cast<int>(kPatience.count())), 1);
}

TEST(Supervisor, OfDeathsSeenTogetherAKillIsTheCause) {
  Child launcher(launch({"3", "0=watch", "1=watch", "2=exit-on-news:0"}));
  const auto pids = launcher.ranks(3);
  launcher.signal(SIGSTOP);
  ::kill(pids[0], SIGABRT);
  wait_for_end(pids[0]);
  ::kill(pids[1], SIGKILL);
  wait_for_end(pids[1]);
  launcher.signal(SIGCONT);
  const Outcome outcome = launcher.finish(kAllGone);
  EXPECT_EQ(outcome.status.shell_code(), 137) << outcome.err;
}

class StopTheLauncher : public ::testing::TestWithParam<int> {};

TEST_P(StopTheLauncher, StopsAllRanks) {
  Child launcher(launch({"2", "0=stop", "1=stop"}));
  launcher.ranks(2);
  launcher.signal(GetParam());
  const Outcome outcome = launcher.finish();
  EXPECT_EQ(outcome.status.shell_code(), 75);
  EXPECT_THAT(outcome.err, HasSubstr("asked the ranks to stop; a second signal kills them"));
}

TEST_P(StopTheLauncher, KillsThemTheSecondTime) {
  Child launcher(launch({"2", "0=stubborn", "1=stubborn"}));
  launcher.ranks(2);
  launcher.signal(GetParam());
  EXPECT_EQ(launcher.line(), "asked to stop");
  EXPECT_EQ(launcher.line(), "asked to stop");
  launcher.signal(GetParam());
  const Outcome outcome = launcher.finish(kAllGone);
  EXPECT_EQ(outcome.status.shell_code(), 128 + GetParam());
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 was killed on the second SIG"));
}

INSTANTIATE_TEST_SUITE_P(Each, StopTheLauncher, ::testing::Values(SIGTERM, SIGINT, SIGUSR1));

TEST(Supervisor, ASignalToAllProcessesIsOneRequest) {
  // A batch system signals launcher and ranks; the launcher passes its own on.
  Child launcher(launch({"2", "0=stubborn", "1=stop"}));
  const auto pids = launcher.ranks(2);
  ::kill(pids[0], SIGTERM);
  EXPECT_EQ(launcher.line(), "asked to stop");
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.line(), "asked to stop");
  EXPECT_EQ(launcher.line(), "asked to stop");
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.finish(kAllGone).status.shell_code(), 128 + SIGTERM);
}

TEST(Supervisor, ARankThatStopsByItselfIsNoDeath) {
  const Outcome outcome = run({"2", "0=exit:75", "1=exit:75"});
  EXPECT_EQ(outcome.status.shell_code(), 75);
  EXPECT_EQ(outcome.err, "");
}

TEST(Supervisor, ADeathWhileStoppingIsADeath) {
  Child launcher(launch({"2", "0=stop", "1=watch"}));  // rank 1 has no handler: SIGTERM kills it
  launcher.ranks(2);
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.finish(kAllGone).status.shell_code(), 128 + SIGTERM);
}

TEST(Supervisor, ASignalThatRanksDoNotHandleIsItsOwnCode) {
  Child launcher(launch({"2", "0=watch", "1=watch"}));
  launcher.ranks(2);
  launcher.signal(SIGINT);  // the ranks are sent SIGTERM
  const Outcome outcome = launcher.finish(kAllGone);
  EXPECT_EQ(outcome.status.shell_code(), 128 + SIGINT);
  EXPECT_THAT(outcome.err, Not(HasSubstr("Its last output")));
}

TEST(Supervisor, ASignalBeforeRanksAreReadyIsHeldBackForThem) {
  Child launcher(launch({"2", "grace=60", "0=stop-late:500", "1=stop-late:500"}));
  launcher.ranks(2);
  launcher.signal(SIGINT);
  const Outcome outcome = launcher.finish();
  EXPECT_EQ(outcome.status.shell_code(), 75) << outcome.err;
}

TEST(Supervisor, ARankThatStoppedStopsTheOthers) {
  Child launcher(launch({"3", "grace=60", "0=stop", "1=stop-late", "2=stop-late"}));
  const auto pids = launcher.ranks(3);
  ::kill(pids[1], SIGTERM);
  EXPECT_EQ(launcher.finish().status.shell_code(), 75);
}

TEST(Supervisor, ARankThatStoppedMayLeaveOthersWithoutAPeer) {
  EXPECT_EQ(run({"2", "grace=60", "0=exit:75", "1=exit:76"}).status.shell_code(), 75);
}

TEST(Supervisor, KillsRanksThatStayWhereOthersStopped) {
  Child launcher(launch({"2", "grace=1", "0=stop", "1=deaf"}));
  launcher.ranks(2);
  launcher.signal(SIGTERM);
  const Outcome outcome = launcher.finish();
  EXPECT_EQ(outcome.status.shell_code(), 75);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 did not stop within 1 s and was killed\n"));
}

TEST(Supervisor, AFaultOfAllRanksIsReadOnce) {
  const Outcome outcome = run({"3", "0=fault:66", "1=fault:66", "2=fault:66"});
  EXPECT_EQ(outcome.status.shell_code(), 66);
  EXPECT_EQ(times(outcome.err, "no such file: model/config.json"), 1) << outcome.err;
  EXPECT_EQ(times(outcome.err, "give model.path"), 1) << outcome.err;
  EXPECT_EQ(times(outcome.err, "exited with code 66 (an input is missing)\n"), 1) << outcome.err;
}

TEST(Supervisor, AFaultOfOneRankIsReadOnce) {
  const Outcome outcome = run({"3", "0=watch", "1=fault:66", "2=watch"});
  EXPECT_EQ(outcome.status.shell_code(), 66);
  EXPECT_EQ(times(outcome.err, "no such file: model/config.json"), 1) << outcome.err;
  EXPECT_EQ(times(outcome.err, "sherd launch: rank 1 exited with code 66 (an input is missing)\n"),
            1)
      << outcome.err;
}

/// What follows "NAME=" on each line that begins so.
std::vector<std::string> values_of(const std::string& name, const std::string& text) {
  std::vector<std::string> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + "=")) {
      values.push_back(line.substr(name.size() + 1));
    }
  }
  return values;
}

TEST(Supervisor, GivesTheRanksOfALaunchASecret) {
  const std::vector<std::string> command = {"2", "0=variables", "1=variables"};
  const auto secrets = values_of("secret", run(command, {"SHERD_JOB_SECRET=known"}).out);
  ASSERT_EQ(secrets.size(), 2U);
  EXPECT_EQ(secrets[0], secrets[1]);
  EXPECT_EQ(secrets[0].size(), 64U);
  EXPECT_NE(values_of("secret", run(command).out).at(0), secrets[0]);
  // That of several hosts is theirs to give.
  const auto given =
      run({"1", "host=0/1@127.0.0.1:29501", "0=variables"}, {"SHERD_JOB_SECRET=known"});
  EXPECT_EQ(values_of("secret", given.out).at(0), "known");
}

TEST(Supervisor, PassesATimeoutOn) {
  EXPECT_EQ(values_of("timeout", run({"1", "timeout=25", "0=variables"}).out).at(0), "25");
  EXPECT_EQ(values_of("timeout", run({"1", "0=variables"}).out).at(0), "none");
}

/// The launcher with these limits on descriptors.
Outcome run_limited(const std::string& limits, const std::string& arguments) {
  return Child({"/bin/sh", "-c", limits + "; exec " + actor() + " launch " + arguments}).finish();
}

TEST(Supervisor, RaisesTheLimitOnDescriptors) {
  const Outcome outcome = run_limited("ulimit -Sn 100; ulimit -Hn 700", "1 0=variables");
  EXPECT_EQ(values_of("descriptors", outcome.out).at(0), "700") << outcome.err;
}

TEST(Supervisor, RefusesTooFewDescriptors) {
  for (const char* limit : {"8", "16", "24", "90"}) {
    const Outcome outcome = run_limited(std::string("ulimit -n ") + limit, "16 0=exit:0");
    EXPECT_EQ(outcome.status.shell_code(), 69) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("this process may hold " + std::string(limit) +
                                       " files and connections open, and needs 96: raise the "
                                       "hard limit"));
  }
}

/// Waits until a pipe that nobody reads holds all it can.
void wait_until_full(int fd) {
  int held = -1;
  int before = -2;
  for (int look = 0; look < 200 && (held != before || held <= 0); ++look) {
    before = held;
    ::usleep(100'000);
    ASSERT_EQ(::ioctl(fd, FIONREAD, &held), 0);
  }
}

// A pager that does not scroll, say. Its ranks wait with what they write; the launcher must not.
TEST(Supervisor, AStalledReaderDoesNotMakeItDeaf) {
  const std::vector<std::string> command = launch({"2", "0=flood", "1=flood"});
  RankProcess launcher({.command = command});
  wait_until_full(launcher.stderr_fd());
  const auto start = std::chrono::steady_clock::now();
  launcher.signal(SIGTERM);
  launcher.signal(SIGTERM);
  std::optional<ExitStatus> status;
  while (!(status = launcher.reap()) && std::chrono::steady_clock::now() - start < kPatience) {
    ::usleep(10'000);
  }
  ASSERT_TRUE(status) << "it still runs";
  EXPECT_EQ(status->shell_code(), 128 + SIGTERM);
}

TEST(Supervisor, NoRankSurvivesTheLauncher) {
  Child launcher(launch({"3", "0=deaf", "1=deaf", "2=watch"}));
  launcher.ranks(3);
  launcher.signal(SIGKILL);
  EXPECT_EQ(launcher.finish(seconds{2}).status.signal, SIGKILL);
}

TEST(Supervisor, ARankThatEndsItsWatchExitsByItsOwnCode) {
  EXPECT_EQ(run({"1", "0=watch-then-end:3"}).status.shell_code(), 3);
}

}  // namespace
}  // namespace sherd::launch::testing
