// Parts of a world that train apart.

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/train_small_net.h"

namespace sherd::test {
namespace {

// The half of four ranks that this one is in.
RankGroup half_of(const World& world, bool neighbours) {
  return neighbours ? RankGroup{world.rank() / 2 * 2, 1, 2} : RankGroup{world.rank() % 2, 2, 2};
}

// Each half has a world of its own: its numbers, texts and broadcasts are its own, and it trains
// the bits of a world of two, for as many steps as it likes.
void train_apart(World whole, bool neighbours, Strategy strategy) {
  const RankGroup half = half_of(whole, neighbours);
  World world = whole.subset(half);
  TORCH_CHECK(world.size() == 2 && world.rank() == half.index_of(whole.rank()), "another rank");
  TORCH_CHECK(world.local_size() == 2 && world.local_rank() == world.rank(), "another local rank");
  double sum = whole.rank();
  world.all_reduce({&sum, 1});
  TORCH_CHECK(sum == 2 * half.first + half.stride, "the sum of another group: ", sum);
  const std::vector<std::string> texts = world.all_gather(std::to_string(whole.rank()));
  TORCH_CHECK(texts[1] == std::to_string(half.rank_at(1)), "the text of another group");
  int64_t sent = whole.rank();
  world.broadcast(&sent, sizeof sent, 1);
  TORCH_CHECK(sent == half.rank_at(1), "the broadcast of another group");

  const int steps = half.first == 0 ? 3 : 5;
  const ShardOptions options{.strategy = strategy};
  const SmallOutcome part = train_small_net(world, {.options = options, .steps = steps});
  const SmallOutcome one =
      train_small_net(World::alone(), {.micro_batches = 2, .options = options, .steps = steps});
  check_equal_bits(one, part);
  whole.barrier();
}

TEST(Subset, HalvesTrainApartAsWorldsOfTheirOwn) {
  for (const bool neighbours : {true, false}) {
    for (const Strategy strategy : {Strategy::FullShard, Strategy::HybridShard}) {
      const auto body = [&](World world) { train_apart(std::move(world), neighbours, strategy); };
      run_ranks(4, body);
      for (const Transport transport : kTransports) {
        EXPECT_EQ(run_processes_over(transport, 4, body), (std::vector<int>{0, 0, 0, 0}));
      }
    }
  }
}

TEST(Subset, OfOneRankIsAWorldOfOne) {
  run_ranks(3, [](World whole) {
    World world = whole.subset({whole.rank(), 1, 1});
    EXPECT_EQ(world.size(), 1);
    EXPECT_EQ(world.rank(), 0);
    const SmallOutcome part = train_small_net(world, {.micro_batches = 2, .options = {}});
    check_equal_bits(train_small_net(World::alone(), {.micro_batches = 2, .options = {}}), part);
  });
}

// A part has parts.
TEST(Subset, OfASubset) {
  run_ranks(4, [](World whole) {
    World column = whole.subset({whole.rank() % 2, 2, 2});
    World one = column.subset({column.rank(), 1, 1});
    EXPECT_EQ(one.size(), 1);
    World again = column.subset({0, 1, 2});
    double sum = whole.rank();
    again.all_reduce({&sum, 1});
    EXPECT_EQ(sum, whole.rank() % 2 == 0 ? 2 : 4);
  });
}

TEST(Subset, MustHoldTheRankAndNoneOutsideTheWorld) {
  run_ranks(2, [](World whole) {
    for (const RankGroup& wrong :
         {RankGroup{1 - whole.rank(), 1, 1}, RankGroup{0, 1, 3}, RankGroup{-1, 1, 2},
          RankGroup{0, 0, 2}, RankGroup{0, 1, 0}, RankGroup{0, 2, 2}}) {
      expect_error([&] { static_cast<void>(whole.subset(wrong)); }, ExitCode::Usage,
                   {"[World::subset] rank " + std::to_string(whole.rank()) + " of 2",
                    "each rank passes the group that it is in"});
    }
  });
}

// What a rank of a part is called in messages is its number in the job.
TEST(Subset, NamesRanksOfTheWholeInMessages) {
  run_ranks(4, [](World whole) {
    World world = whole.subset({whole.rank() / 2 * 2, 1, 2});
    if (whole.rank() >= 2) {
      const auto op = whole.rank() == 2 ? ReduceOp::Sum : ReduceOp::Max;
      double value = 1;
      expect_error(
          [&] {
            world.all_reduce({&value, 1}, op);
          },
          ExitCode::RanksDisagree, {"ank " + std::to_string(5 - whole.rank()) + " has run"});
    }
  });
}

}  // namespace
}  // namespace sherd::test
