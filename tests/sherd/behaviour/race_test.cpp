// Ranks that are late at random, each in its own way, compute the bits of ranks that are not.

#include <cstdlib>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/meshes.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/slow_world.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

/// A block that is late in forward and in backward.
struct SlowBlockImpl : BlockImpl {
  SlowBlockImpl(int64_t width, std::shared_ptr<Delays> own)
      : BlockImpl(width), delays(std::move(own)) {}
  at::Tensor forward(const at::Tensor& x) {
    delays->sleep();
    at::Tensor y = BlockImpl::forward(x);
    if (y.requires_grad()) {
      y.register_hook([late = delays](const at::Tensor&) { late->sleep(); });
    }
    return y;
  }
  std::shared_ptr<Delays> delays;
};
TORCH_MODULE(SlowBlock);
struct SlowNetImpl : torch::nn::Module {
  explicit SlowNetImpl(const std::shared_ptr<Delays>& delays)
      : input(register_module("input", torch::nn::Linear(5, kWidth))),
        head(register_module("head", torch::nn::Linear(kWidth, 3))) {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(
          register_module("block" + std::to_string(i), Unit<SlowBlock>(kWidth, delays)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = input(x);
    for (auto& block : blocks) {
      hidden = block(hidden);
    }
    return head(hidden);
  }
  static constexpr int64_t kWidth = 13;
  torch::nn::Linear input;
  std::vector<Unit<SlowBlock>> blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(SlowNet);

struct Race {
  ShardOptions options;
  bool sync_each = true;
  bool all_reduce_each = true;
  bool reshard_after_backward = true;
};

/// What a rank has after three steps of three micro-batches. Delays come from `seed` and the rank;
/// none where it is 0.
std::vector<at::Tensor> train(const World& world, const Race& race, uint64_t seed) {
  auto delays =
      std::make_shared<Delays>(seed == 0 ? 0 : seed * 1000 + static_cast<uint64_t>(world.rank()));
  auto net = seeded(7, [&] { return SlowNet(delays); });
  auto model =
      fully_shard(net, mesh_for(slow_world(world, delays), race.options.strategy), race.options);
  model.set_reshard_after_backward(race.reshard_after_backward);
  AdamW optimizer(model, {.lr = 1e-2});
  std::vector<at::Tensor> values;
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 3; ++micro) {
      model.set_requires_gradient_sync(micro == 2 || race.sync_each);
      model.set_requires_all_reduce(micro == 2 || race.all_reduce_each);
      const Example example = make_example((step * 3 + micro) * world.size() + world.rank());
      const at::Tensor loss = sum_of_errors(model(example.x), example.y);
      loss.backward();
      values.push_back(loss.detach());
    }
    clip_grad_norm(model, 1.0);
    delays->sleep();
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const ParameterShard& shard : model.parameter_shards()) {
    values.push_back(shard.value.clone());
  }
  return values;
}

void check_against_punctual(const World& world, const Race& race, uint64_t seed) {
  const auto expected = train(world, race, 0);
  const auto actual = train(world, race, seed);
  for (size_t i = 0; i < expected.size(); ++i) {
    TORCH_CHECK(at::equal(expected[i], actual[i]), name_of(race.options.strategy), ", seed ", seed,
                ", rank ", world.rank(), ": tensor ", i, " differs");
  }
}

std::vector<Race> races(Strategy strategy) {
  const ShardOptions options{.strategy = strategy};
  ShardOptions other = options;
  other.precision.param_dtype = at::kBFloat16;
  other.prefetch_depth = 3;
  other.backward_prefetch = BackwardPrefetch::Post;
  other.units = unit_policy::every_unit({.checkpoint_activations = true});
  return {{options},
          {other},
          {.options = options, .sync_each = false},
          {.options = options, .all_reduce_each = false},
          {.options = options, .reshard_after_backward = false}};
}

TEST(Race, DelaysOfThreadsChangeNoBit) {
  uint64_t seed = 0;
  for (const int ranks : {2, 3, 4}) {
    for (const Strategy strategy : kStrategies) {
      for (const Race& race : races(strategy)) {
        ++seed;
        EXPECT_NO_THROW(
            run_ranks(ranks, [&](World world) { check_against_punctual(world, race, seed); }));
      }
    }
  }
}

TEST(Race, DelaysOfThreadsInSmallerGroupsChangeNoBit) {
  const Race race{.options = {.reshard_after_forward_size = 2}};
  for (const uint64_t seed : {100, 101, 102}) {
    EXPECT_NO_THROW(run_ranks(4, [&](World world) { check_against_punctual(world, race, seed); }));
  }
}

void check_all_against_punctual(const World& world) {
  uint64_t seed = 200;
  for (const Strategy strategy : kStrategies) {
    for (const Race& race : races(strategy)) {
      check_against_punctual(world, race, ++seed);
    }
  }
  if (world.size() == 4) {
    check_against_punctual(world, {.options = {.reshard_after_forward_size = 2}}, ++seed);
  }
}

void expect_no_difference(Transport transport, int ranks) {
  const auto statuses = run_processes_over(transport, ranks, check_all_against_punctual);
  EXPECT_EQ(statuses, std::vector<int>(static_cast<size_t>(ranks), 0));
}

// Each transport on the fewest ranks.
TEST(Race, DelaysOfProcessesChangeNoBit) {
  for (const Transport transport : kTransports) {
    expect_no_difference(transport, 2);
  }
}

TEST(Race, DelaysOfManyProcessesChangeNoBit) {
  if (std::getenv("SHERD_LONG_CASES") == nullptr) {
    GTEST_SKIP() << "SKIPPED: `make test-long` runs it";
  }
  for (const Transport transport : kTransports) {
    expect_no_difference(transport, 4);
  }
}

}  // namespace
}  // namespace sherd::test
