// Waits for ranks that work longer than the timeout, and say so.

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sherd/fully_shard.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeout{1000};
constexpr int kReports = 20;  // one per tenth of the timeout: twice as long as it

void work_and_report(const World& world) {
  for (int i = 1; i <= kReports; ++i) {
    std::this_thread::sleep_for(kTimeout / 10);
    world.report_progress("writing block " + std::to_string(i));
  }
}

// Several waits, each for a rank that works for two timeouts.
void wait_for_a_working_rank(World world) {
  auto model = fully_shard(make_net(), Mesh::shard(world));
  if (world.rank() == 0) {
    work_and_report(world);
  }
  world.barrier();
  if (world.rank() == 1) {
    work_and_report(world);
  }
  static_cast<void>(world.all_gather("text"));
  if (world.rank() == 0) {
    const WorkPhase phase(world, "preparing", 10 * kTimeout);
    std::this_thread::sleep_for(2 * kTimeout);
  }
  model(make_example(world.rank()).x).sum().backward();
  // Nothing is gathered again in this backward, so rank 0 waits in the reduction.
  auto kept = fully_shard(make_net(), Mesh::shard(world), {.strategy = Strategy::ShardGradOp});
  torch::Tensor sum = kept(make_example(world.rank()).x).sum();
  if (world.rank() == 1) {
    work_and_report(world);
  }
  sum.backward();
}

TEST(Progress, IsWaitedForBetweenThreads) {
  run_ranks(2, wait_for_a_working_rank, kTimeout);
}

TEST(Progress, IsWaitedForBetweenProcesses) {
  for (const Transport transport : kTransports) {
    EXPECT_EQ(run_processes_over(transport, 2, wait_for_a_working_rank, kTimeout),
              (std::vector<int>{0, 0}));
  }
}

// A wait that ends names the missing rank and what it reported last.
void miss_a_silent_rank(const World& given) {
  World world = given;
  world.barrier();
  if (world.rank() == 1) {
    world.report_progress("writing block 7");
    std::this_thread::sleep_for(4 * kTimeout);
    return;
  }
  expect_error([&] { world.barrier(); }, ExitCode::Hang,
               {"issing rank 1", "Rank 1 last reported: writing block 7."});
  if (testing::Test::HasFailure()) {
    throw std::runtime_error("another message");
  }
  std::this_thread::sleep_for(kTimeout);  // the store lives with rank 0
}

TEST(Progress, OfASilentRankIsNamedByTheTimeout) {
  run_ranks(2, miss_a_silent_rank, kTimeout);
  EXPECT_EQ(run_processes_over(Transport::SharedMemory, 2, miss_a_silent_rank, kTimeout),
            (std::vector<int>{0, 0}));
}

TEST(Progress, OfAPhaseEndsWithItsLimit) {
  run_ranks(
      2,
      [](World world) {
        if (world.rank() == 1) {
          const WorkPhase phase(world, "tokenizing train.jsonl", 2 * kTimeout);
          phase.report("12 of 40 MiB");
          std::this_thread::sleep_for(5 * kTimeout);
          return;
        }
        const auto begin = std::chrono::steady_clock::now();
        expect_error([&] { world.barrier(); }, ExitCode::Hang,
                     {"missing rank 1", "Rank 1 last reported: tokenizing train.jsonl"});
        EXPECT_GE(std::chrono::steady_clock::now() - begin, 2 * kTimeout);
      },
      kTimeout);
}

// Forked ranks that exchange until the test has suspended and resumed some of them.
std::vector<pid_t> exchanging_ranks(const launch::LoopbackSocket& socket, Transport transport,
                                    int ready_fd) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(fork_rank(socket, rank, 2, [&] {
      World world = World::from_environment({kTimeout, c10::DeviceType::CPU, transport});
      auto model = fully_shard(make_net(), Mesh::shard(world));
      const auto begin = std::chrono::steady_clock::now();
      bool is_first = true;
      double over = 0;
      while (over == 0) {
        model(make_example(world.rank()).x).sum().backward();
        double values[] = {std::chrono::steady_clock::now() - begin > 5 * kTimeout ? 1.0 : 0.0};
        world.all_reduce(values, ReduceOp::Max);
        over = values[0];
        if (std::exchange(is_first, false) && ::write(ready_fd, "x", 1) != 1) {
          throw std::runtime_error("nobody reads");
        }
      }
    }));
  }
  return children;
}

TEST(Suspension, OfAllRanksDoesNotCount) {
  for (const Transport transport : kTransports) {
    int ready[2] = {};
    ASSERT_EQ(::pipe(ready), 0);
    const launch::LoopbackSocket socket = launch::listen_on_loopback({});
    const auto ranks = exchanging_ranks(socket, transport, ready[1]);
    char both[2] = {};
    ASSERT_EQ(::read(ready[0], both, 1), 1);
    ASSERT_EQ(::read(ready[0], both, 1), 1);
    for (int times = 0; times < 3; ++times) {  // each time somewhere else in a step
      for (const pid_t rank : ranks) {
        ::kill(rank, SIGSTOP);
      }
      std::this_thread::sleep_for(3 * kTimeout / 2);
      for (const pid_t rank : ranks) {
        ::kill(rank, SIGCONT);
      }
      std::this_thread::sleep_for(kTimeout / 20);
    }
    EXPECT_EQ(statuses_of(ranks), (std::vector<int>{0, 0}));
    ::close(ready[0]);
    ::close(ready[1]);
  }
}

TEST(Suspension, OfOneRankIsAMissingRank) {
  for (const int silent : {0, 1}) {  // rank 0 holds the store
    int ready[2] = {};
    ASSERT_EQ(::pipe(ready), 0);
    const launch::LoopbackSocket socket = launch::listen_on_loopback({});
    const auto ranks = exchanging_ranks(socket, Transport::SharedMemory, ready[1]);
    char both[2] = {};
    ASSERT_EQ(::read(ready[0], both, 1), 1);
    ASSERT_EQ(::read(ready[0], both, 1), 1);
    const auto at = [&](int rank) { return ranks[static_cast<std::size_t>(rank)]; };
    ::kill(at(silent), SIGSTOP);
    EXPECT_EQ(statuses_of({at(1 - silent)}), std::vector<int>{static_cast<int>(ExitCode::Hang)});
    ::kill(at(silent), SIGKILL);
    EXPECT_EQ(statuses_of({at(silent)}), std::vector<int>{128 + SIGKILL});
    ::close(ready[0]);
    ::close(ready[1]);
  }
}

}  // namespace
}  // namespace sherd::test
