// How long ranks wait for each other, and what they say meanwhile.

#include <chrono>
#include <thread>

#include "sherd/fully_shard.h"
#include "tests/support/expect_error.h"
#include "tests/support/processes.h"

namespace sherd::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

void throw_on_failure() {
  if (testing::Test::HasFailure()) {
    throw std::runtime_error("another message");
  }
}

TEST(Timeout, IsThatOfTheEnvironmentWhereTheProgramSaysNone) {
  setenv("SHERD_TIMEOUT", "2", 1);
  const auto statuses = run_processes(
      2,
      [](World world) {
        if (world.rank() == 1) {
          std::this_thread::sleep_for(seconds(5));  // alive, and silent
          return;
        }
        const auto begin = Clock::now();
        expect_error([&] { world.barrier(); }, ExitCode::Hang,
                     {"all-reduce failed", "Missing rank 1.", "raise the timeout"});
        EXPECT_GE(Clock::now() - begin, milliseconds(1900));
        throw_on_failure();
      },
      std::nullopt);
  unsetenv("SHERD_TIMEOUT");
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(Timeout, IsRefusedWhereItMakesNoSense) {
  for (const milliseconds wrong :
       {milliseconds(0), milliseconds(-5), milliseconds(8 * 86400000L)}) {
    const auto statuses = run_processes(
        1 + 1, [](World /*world*/) {}, wrong);
    EXPECT_EQ(statuses, (std::vector<int>{64, 64})) << wrong.count();
  }
}

TEST(Waiting, IsWhatAnotherThreadCanRead) {
  for (const Transport transport : kTransports) {
    const auto statuses = run_processes_over(transport, 2, [](World world) {
      EXPECT_FALSE(world.waiting());
      world.barrier();
      if (world.rank() == 1) {
        std::this_thread::sleep_for(milliseconds(700));
        world.barrier();
        return;
      }
      std::string what;
      seconds::rep age_s = -1;
      std::thread reader([&] {
        std::this_thread::sleep_for(milliseconds(300));
        if (const auto wait = world.waiting()) {
          what = wait->what;
          age_s = std::chrono::duration_cast<seconds>(Clock::now() - wait->since).count();
        }
      });
      world.barrier();
      reader.join();
      EXPECT_EQ(what, "all-reduce");
      EXPECT_EQ(age_s, 0);
      EXPECT_FALSE(world.waiting());
      throw_on_failure();
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
  }
}

// Keeps what is warned of.
class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text += warning.msg(); }
  std::string text;
};

// A rank that died before it connected looks like one that was never started.
TEST(Rendezvous, SaysEarlyWhoHasNotCome) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  const pid_t first = fork_rank(socket, 0, 2, [] {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    expect_error([] { World::from_environment({.timeout = seconds(2)}); }, ExitCode::PeerLost,
                 {": rank 1 did not come in time"});
    EXPECT_THAT(warnings.text,
                testing::HasSubstr(": rank 1 has not come yet. Waiting for up to 1 s more."));
    throw_on_failure();
  });
  EXPECT_EQ(statuses_of({first}), (std::vector<int>{0}));
}

// Ranks 0 and 1 of three; the third has not been started. The first to give up is rank 0, which
// tells who is missing; its store goes with it.
TEST(Rendezvous, NamesTheRanksThatDoNotCome) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  const pid_t first = fork_rank(socket, 0, 3, [] {
    expect_error([] { World::from_environment({.timeout = seconds(5)}); }, ExitCode::PeerLost,
                 {"rendezvous of rank 0 of 3 at 127.0.0.1:",
                  ": rank 2 did not come in time. Check that all ranks were started"});
    throw_on_failure();
  });
  const pid_t second = fork_rank(socket, 1, 3, [] {
    expect_error([] { World::from_environment({.timeout = seconds(60)}); }, ExitCode::PeerLost,
                 {"did not meet the others at 127.0.0.1:"});
    throw_on_failure();
  });
  EXPECT_EQ(statuses_of({first, second}), (std::vector<int>{0, 0}));
}

// Rank 1 comes and is killed, while rank 2 has not been started.
TEST(Rendezvous, NoticesARankThatEndsBeforeAllHaveCome) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  const pid_t lost =
      fork_rank(socket, 1, 3, [] { World::from_environment({.timeout = seconds(60)}); });
  const pid_t waiting = fork_rank(socket, 0, 3, [] {
    expect_error([] { World::from_environment({.timeout = seconds(60)}); }, ExitCode::PeerLost,
                 {"rank 1 came and has ended before all had come"});
    throw_on_failure();
  });
  std::this_thread::sleep_for(seconds(2));
  ::kill(lost, SIGKILL);
  const auto begin = Clock::now();
  EXPECT_EQ(statuses_of({waiting, lost}), (std::vector<int>{0, 128 + SIGKILL}));
  EXPECT_LT(Clock::now() - begin, seconds(5));
}

// Over TCP, as between hosts: all others have told, so the one that has not is gone.
TEST(DeadRank, IsNamedWithoutWaitingForItsNote) {
  const auto statuses = run_processes_over(Transport::ProcessGroups, 3, [](World world) {
    world.barrier();
    if (world.rank() == 2) {
      raise(SIGKILL);
    }
    const auto begin = Clock::now();
    expect_error([&] { world.barrier(); }, ExitCode::PeerLost, {"Missing rank 2."});
    EXPECT_LT(Clock::now() - begin, seconds(2));
    throw_on_failure();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL}));
}

}  // namespace
}  // namespace sherd::test
