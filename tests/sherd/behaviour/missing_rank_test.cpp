// Ranks that do not do the same: named before anything hangs where that can be seen, else by the
// timeout.

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

constexpr std::chrono::milliseconds kShort{1500};

// The others are there, and silent.
void expect_hang(const std::function<void()>& body, const std::vector<std::string>& parts) {
  expect_error(body, ExitCode::Hang, parts);
  if (testing::Test::HasFailure()) {
    throw std::runtime_error("another message");
  }
}

// Rank 0 does something that the others do not: `if (rank == 0) world.barrier();`
TEST(MissingRank, ACollectiveInsideARank0BranchIsNamedByTheTimeout) {
  const auto statuses = run_processes_over(
      Transport::ProcessGroups, 2,
      [](World world) {
        auto model = fully_shard(make_net(), Mesh::shard(world));
        if (world.rank() == 0) {
          expect_hang([&] { world.barrier(); },
                      {"all-reduce failed", "Rank 1 waited in all-gather of unit 'root'."});
        } else {
          expect_hang([&] { model(make_example(0).x); },
                      {"all-gather of unit 'root', in forward of step 1, on rank 1 of 2: ",
                       "Rank 0 waited in all-reduce."});
        }
        std::this_thread::sleep_for(kShort);  // the store lives with rank 0
      },
      kShort);
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(MissingRank, OneThatDoesNothingIsNamedByTheTimeout) {
  const auto statuses = run_processes_over(
      Transport::ProcessGroups, 3,
      [](World world) {
        auto model = fully_shard(make_net(), Mesh::shard(world));
        if (world.rank() == 2) {
          std::this_thread::sleep_for(4 * kShort);
          return;
        }
        expect_hang([&] { model(make_example(0).x); }, {"all-gather of unit ", "Missing rank 2."});
        std::this_thread::sleep_for(kShort);
      },
      kShort);
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0}));
}

// Where ranks share memory a forward needs nothing of the others but what they published before;
// the backward misses them.
TEST(MissingRank, OfSharedMemoryIsNamedByTheTimeoutWithWhereItIs) {
  const auto statuses = run_processes_over(
      Transport::SharedMemory, 2,
      [](World world) {
        auto model = fully_shard(make_net(), Mesh::shard(world));
        if (world.rank() == 0) {
          expect_hang([&] { world.barrier(); },
                      {"all-reduce failed", "Rank 1 waited in reduction of unit 'block2'."});
        } else {
          expect_hang([&] { model(make_example(0).x).sum().backward(); },
                      {"in backward of step 1, on rank 1 of 2: reduction of unit 'block2' timed "
                       "out: missing rank 0. Rank 0 waited in all-reduce. Every rank must reach "
                       "this collective; look at what they did instead."});
        }
        std::this_thread::sleep_for(kShort);  // the store lives with rank 0
      },
      kShort);
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(MissingRank, OfThreadsIsNamedByTheTimeout) {
  run_ranks(
      3,
      [](World world) {
        auto model = fully_shard(make_net(), Mesh::shard(world));
        if (world.rank() == 1) {
          std::this_thread::sleep_for(2 * kShort);
          return;
        }
        expect_error([&] { model(make_example(0).x).sum().backward(); }, ExitCode::Hang,
                     {"in backward of step 1", "missing rank 1"});
      },
      kShort);
}

at::Tensor run_in_order(Sharded<StackNet>& model, const std::vector<size_t>& order) {
  return model.run(
      [&](StackNetImpl& stack, const at::Tensor& x) { return stack.forward(x, order); },
      odd_input(0));
}

TEST(Debug, NamesTheRankThatRunsAnotherUnit) {
  run_ranks(3, [](World world) {
    auto model = fully_shard(StackNet(), Mesh::shard(world), {.prefetch_depth = 0, .debug = true});
    run_in_order(model, {0, 1, 2}).sum().backward();
    const std::vector<size_t> order =
        world.rank() == 2 ? std::vector<size_t>{1, 0, 2} : std::vector<size_t>{0, 1, 2};
    expect_error([&] { run_in_order(model, order); }, ExitCode::RanksDisagree,
                 {"[debug] ranks disagree. Rank 0 is at all-gather of unit 'layer0', in forward of "
                  "step 1; rank 2 is at all-gather of unit 'layer1', in forward of step 1"});
  });
}

TEST(Debug, ChangesNothingWhereRanksAgree) {
  run_ranks(2, [](World world) {
    std::vector<at::Tensor> expected;
    for (const bool debug : {false, true}) {
      auto model = fully_shard(make_net(), Mesh::shard(world), {.debug = debug});
      model(make_example(world.rank()).x).sum().backward();
      size_t i = 0;
      for (const ParameterShard& shard : model.parameter_shards()) {
        if (debug) {
          EXPECT_TRUE(at::equal(expected[i++], shard.gradient));
        } else {
          expected.push_back(shard.gradient.clone());
        }
      }
    }
  });
}

}  // namespace
}  // namespace sherd::test
