// The engine on devices with streams: the numbers of the host, whatever the order of what may
// overlap, and no access that nothing orders.

#include "tests/fake_device/scenarios.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "sherd/optim.h"
#include "tests/fake_device/ranks.h"
#include "tests/fake_device/streams.h"
#include "tests/support/left_out_step.h"
#include "tests/support/ranks.h"
#include "tests/support/train_small_net.h"

namespace sherd::fake {
namespace {

using Values = std::vector<std::vector<at::Tensor>>;  // by rank

Values on_host(const Scenario& scenario) {
  Values values(static_cast<size_t>(scenario.ranks));
  test::run_ranks(scenario.ranks, [&](World world) {
    values[static_cast<size_t>(world.rank())] = train(world, scenario);
  });
  return values;
}

Values on_devices(const Scenario& scenario, uint64_t seed) {
  set_seed(seed);
  Values values(static_cast<size_t>(scenario.ranks));
  run_ranks_on_devices(scenario.ranks, [&](const World& world) {
    values[static_cast<size_t>(world.rank())] = train(world, scenario);
  });
  return values;
}

// From SHERD_SOAK_SEEDS, "first-last": what `make soak` runs.
std::pair<uint64_t, uint64_t> seeds() {
  const char* const given = std::getenv("SHERD_SOAK_SEEDS");
  if (given == nullptr) {
    return {1, 3};
  }
  char* rest = nullptr;
  const uint64_t first = std::strtoull(given, &rest, 10);
  return {first, std::strtoull(rest + 1, nullptr, 10)};
}

bool are_equal(const Values& a, const Values& b) {
  const auto same = [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same);
  });
}

class Scenarios : public testing::TestWithParam<size_t> {
 protected:
  const Scenario& scenario = scenarios()[GetParam()];
};

TEST_P(Scenarios, HaveOneResultInAnyOrder) {
  SCOPED_TRACE(scenario.name);
  const Values expected = on_devices(scenario, 0);
  if (scenario.options.precision.master != Master::BFloat16) {  // rounds at random
    const Values host = on_host(scenario);
    for (size_t rank = 0; rank < host.size(); ++rank) {
      for (size_t i = 0; i < host[rank].size(); ++i) {
        EXPECT_TRUE(at::allclose(host[rank][i], expected[rank][i], 1e-3, 1e-4))
            << "rank " << rank << ", value " << i;
      }
    }
  }
  const auto [first, last] = seeds();
  for (uint64_t seed = first; seed <= last; ++seed) {
    EXPECT_TRUE(are_equal(expected, on_devices(scenario, seed))) << "seed " << seed;
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

INSTANTIATE_TEST_SUITE_P(All, Scenarios, testing::Range<size_t>(0, scenarios().size()));

TEST(FakeDevice, RanksTrainAsOneRank) {
  test::SmallRun both;
  both.micro_batches = 2;
  const auto trained = [](const World& world, const test::SmallRun& run) {
    test::SmallOutcome outcome = test::train_small_net(world, run);
    for (auto& [name, shard] : outcome.shards) {
      shard.value = shard.value.cpu();
    }
    return outcome;
  };
  test::SmallOutcome alone;
  run_ranks_on_devices(1, [&](const World& world) { alone = trained(world, both); });
  run_ranks_on_devices(
      2, [&](const World& world) { test::check_equal_bits(alone, trained(world, {})); });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

TEST(FakeDevice, LeavesStepsOutWithoutAWaitOfTheHost) {
  run_ranks_on_devices(2,
                       [](const World& world) { test::expect_left_out_where_not_finite(world); });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

// By what is found, or by what the engine itself makes of wrong numbers.
bool is_missed(const Scenario& scenario) {
  try {
    static_cast<void>(on_devices(scenario, 0));
  } catch (const std::exception&) {
    static_cast<void>(take_faults());
    return true;
  }
  return !take_faults().empty();
}

// A wait of one stream for another, taken away, is missed, for each pair of streams that has waits;
// a single one need not be, where what it is for is ordered by others.
TEST(FakeDevice, MissesWaitsThatAreTakenAway) {
  for (const size_t at : {0U, 2U, 35U}) {
    const Scenario& scenario = scenarios()[at];
    lose_wait(0, -1);
    static_cast<void>(on_devices(scenario, 0));
    EXPECT_EQ(take_faults(), std::vector<std::string>{});
    std::map<std::pair<int, int>, std::vector<int>> by_streams;
    const std::vector<Wait> all = waits(0);
    for (size_t i = all.size() / 3; i < all.size(); ++i) {  // of the second step on
      by_streams[{all[i].stream, all[i].waits_for}].push_back(static_cast<int>(i));
    }
    EXPECT_GE(by_streams.size(), 4);
    for (const auto& [streams, numbers] : by_streams) {
      EXPECT_TRUE(std::any_of(numbers.begin(), numbers.end(),
                              [&](int number) {
                                lose_wait(0, number);
                                return is_missed(scenario);
                              }))
          << scenario.name << ": stream " << streams.first << " need not wait for "
          << streams.second << ", as after " << all[static_cast<size_t>(numbers.front())].after;
    }
  }
  lose_wait(0, -1);
}

}  // namespace
}  // namespace sherd::fake
