// The engine on devices with streams: the numbers of the host, whatever the order of what may
// overlap, and no access that nothing orders.

#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include "tests/fake_device/ranks.h"
#include "tests/fake_device/streams.h"
#include "tests/support/train_small_net.h"

namespace sherd::fake {
namespace {

using test::SmallOutcome;

SmallOutcome train(World world, const test::SmallRun& run) {
  SmallOutcome outcome = test::train_small_net(std::move(world), run);
  for (auto& [name, shard] : outcome.shards) {
    shard.value = shard.value.cpu();
  }
  return outcome;
}

TEST(FakeDevice, TrainsAsTheHostDoes) {
  const SmallOutcome host = train(World::alone(), {});
  run_ranks_on_devices(1, [&](World world) {
    const SmallOutcome device = train(world, {});
    for (const auto& [name, shard] : host.shards) {
      TORCH_CHECK(at::allclose(shard.value, device.shards.at(name).value, 1e-5, 1e-6), name);
    }
  });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

TEST(FakeDevice, RanksTrainAsOneRank) {
  SmallOutcome alone;
  test::SmallRun both;
  both.micro_batches = 2;
  run_ranks_on_devices(1, [&](World world) { alone = train(world, both); });
  run_ranks_on_devices(2, [&](World world) { test::check_equal_bits(alone, train(world, {})); });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

}  // namespace
}  // namespace sherd::fake
