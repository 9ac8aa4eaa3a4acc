// W ranks with one micro-batch each give the bits of one rank that accumulates the same W
// micro-batches; neither the strategy, nor prefetching, nor the way ranks reach each other changes
// a bit.

#include <gtest/gtest.h>

#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/train_small_net.h"

namespace sherd::test {
namespace {

class Bitwise : public testing::TestWithParam<std::tuple<int, c10::ScalarType>> {
 protected:
  // A world of one that accumulates what all ranks would compute.
  static SmallOutcome alone(int micro_batches) {
    const ShardOptions options{.precision = {.param_dtype = std::get<1>(GetParam())}};
    return train_small_net(World::alone(), {micro_batches, options});
  }
  static int ranks() { return std::get<0>(GetParam()); }
  static SmallRun with(int micro_batches, Strategy strategy, int prefetch_depth) {
    return {micro_batches, {strategy, {.param_dtype = std::get<1>(GetParam())}, prefetch_depth}};
  }
  static void expect_equal(const SmallRun& run) {
    const SmallOutcome one = alone(ranks() * run.micro_batches);
    run_ranks(ranks(), [&](World world) { check_equal_bits(one, train_small_net(world, run)); });
  }
};

TEST_P(Bitwise, RanksEqualAccumulatedMicroBatches) {
  EXPECT_NO_THROW(expect_equal(with(1, Strategy::FullShard, 1)));
}

TEST_P(Bitwise, SoDoRanksThatAccumulate) {
  EXPECT_NO_THROW(expect_equal(with(3, Strategy::FullShard, 1)));
}

TEST_P(Bitwise, ShardGradOpEqualsFullShard) {
  EXPECT_NO_THROW(expect_equal(with(2, Strategy::ShardGradOp, 1)));
}

// Sums over replicas are taken in rank order as well; with rows of one rank that is the same order.
TEST_P(Bitwise, NoShardEqualsFullShard) {
  EXPECT_NO_THROW(expect_equal(with(2, Strategy::NoShard, 1)));
}

TEST_P(Bitwise, HybridShardEqualsFullShardWhereRowsAreOfOneRank) {
  if (shard_size_for(ranks(), Strategy::HybridShard) == 1) {
    EXPECT_NO_THROW(expect_equal(with(2, Strategy::HybridShard, 1)));
  }
}

TEST_P(Bitwise, PrefetchDepthChangesNothing) {
  EXPECT_NO_THROW(expect_equal(with(1, Strategy::FullShard, 0)));
  EXPECT_NO_THROW(expect_equal(with(1, Strategy::FullShard, 3)));
}

TEST_P(Bitwise, ProcessesEqualThreads) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard}) {
    const SmallOutcome one = alone(2 * ranks());
    for (const Transport transport : kTransports) {
      const auto statuses = run_processes_over(transport, ranks(), [&](World world) {
        check_equal_bits(one, train_small_net(world, with(2, strategy, 1)));
      });
      EXPECT_EQ(statuses, std::vector<int>(static_cast<size_t>(ranks()), 0));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Bitwise,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(at::kFloat, at::kBFloat16)));

}  // namespace
}  // namespace sherd::test
