// W ranks with one micro-batch each give the bits of one rank that accumulates the same W
// micro-batches, and the strategy changes no bit.

#include <map>
#include <mutex>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

struct Run {
  int world_size = 1;
  int micro_batches = 1;  ///< a rank and step; all are numbered micro-batch first, then rank
  ShardOptions options;
  int steps = 4;
};

struct Outcome {
  std::vector<std::vector<double>> losses;  ///< by step, in the order of the micro-batches
  std::map<std::string, std::vector<at::Tensor>> pieces;
};

at::Tensor full(const Outcome& outcome, const std::string& name) {
  return at::cat(outcome.pieces.at(name));
}

Outcome train(const Run& run) {
  Outcome outcome;
  const int total = run.world_size * run.micro_batches;
  outcome.losses.assign(static_cast<size_t>(run.steps),
                        std::vector<double>(static_cast<size_t>(total)));
  std::mutex mutex;
  run_ranks(run.world_size, [&](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world), run.options);
    model.set_gradient_divide_factor(1.0);
    AdamW optimizer(model, {.lr = 1e-2});
    for (int step = 0; step < run.steps; ++step) {
      for (int micro = 0; micro < run.micro_batches; ++micro) {
        const int index = micro * world.size() + world.rank();
        const Example example = make_example(step * total + index);
        at::Tensor loss = sum_of_errors(model(example.x), example.y);
        loss.backward();
        outcome.losses[static_cast<size_t>(step)][static_cast<size_t>(index)] = loss.item<double>();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    for (int rank = 0; rank < world.size(); ++rank) {  // pieces in rank order
      world.barrier();
      if (rank == world.rank()) {
        const std::lock_guard lock(mutex);
        for (const auto& shard : model.parameter_shards()) {
          outcome.pieces[shard.name].push_back(shard.value.clone());
        }
      }
    }
  });
  return outcome;
}

void expect_equal_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.pieces.size(), b.pieces.size());
  for (const auto& [name, pieces] : a.pieces) {
    EXPECT_TRUE(at::equal(full(a, name), full(b, name))) << name;
  }
}

class Bitwise : public testing::TestWithParam<std::tuple<int, c10::ScalarType>> {};

TEST_P(Bitwise, RanksEqualAccumulatedMicroBatches) {
  const auto [ranks, dtype] = GetParam();
  const ShardOptions options{.precision = {.param_dtype = dtype}};
  const Outcome one = train({1, 2 * ranks, options});
  const Outcome many = train({ranks, 2, options});
  expect_equal_bits(one, many);
}

TEST_P(Bitwise, StrategiesAgree) {
  const auto [ranks, dtype] = GetParam();
  const Precision precision{.param_dtype = dtype};
  const Outcome full_shard = train({ranks, 2, {Strategy::FullShard, precision}});
  const Outcome grad_op = train({ranks, 2, {Strategy::ShardGradOp, precision}});
  expect_equal_bits(full_shard, grad_op);
}

TEST_P(Bitwise, PrefetchDepthChangesNothing) {
  const auto [ranks, dtype] = GetParam();
  const Precision precision{.param_dtype = dtype};
  const Outcome without = train({ranks, 1, {Strategy::FullShard, precision, /*prefetch_depth=*/0}});
  const Outcome deep = train({ranks, 1, {Strategy::FullShard, precision, /*prefetch_depth=*/3}});
  expect_equal_bits(without, deep);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Bitwise,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(at::kFloat, at::kBFloat16)));

}  // namespace
}  // namespace sherd::test
