// The engine on devices with streams: the numbers of the host, whatever the order of what may
// overlap, and no access that nothing orders.

#include "tests/fake_device/scenarios.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/connect_together.h"
#include "sherd/error.h"
#include "sherd/memory.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/fake_device/fake_device.h"
#include "tests/fake_device/nccl.h"
#include "tests/fake_device/ranks.h"
#include "tests/fake_device/scenario_runs.h"
#include "tests/fake_device/streams.h"
#include "tests/support/expect_error.h"
#include "tests/support/left_out_step.h"
#include "tests/support/ranks.h"
#include "tests/support/train_small_net.h"

namespace sherd::fake {
namespace {

void expect_close(const Values& a, const Values& b) {
  for (size_t rank = 0; rank < a.size(); ++rank) {
    for (size_t i = 0; i < a[rank].size(); ++i) {
      EXPECT_TRUE(at::allclose(a[rank][i], b[rank][i], 1e-3, 1e-4))
          << "rank " << rank << ", value " << i;
    }
  }
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

class Scenarios : public testing::TestWithParam<size_t> {
 protected:
  const Scenario& scenario = scenarios()[GetParam()];
};

TEST_P(Scenarios, HaveOneResultInAnyOrder) {
  SCOPED_TRACE(scenario.name);
  const Values expected = on_devices(without_offload(scenario), 0);
  if (scenario.options.precision.master != Master::BFloat16) {  // rounds at random
    expect_close(on_host(without_offload(scenario)), expected);
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

// On whichever stream: what is computed there later is not in it, and the host waits in wait().
TEST(FakeDevice, HasValuesOfAMomentOnTheHost) {
  register_device();
  set_seed(1);
  const c10::Device device(kDevice, 0);
  const c10::StreamGuard on(pool_stream(device));
  const at::Tensor values = at::full({3}, 1.0F).to(device);
  static_cast<void>(take_host_waits(0));
  const HostCopy copy(values);
  values.fill_(2);
  EXPECT_EQ(take_host_waits(0), std::vector<std::string>{});
  EXPECT_TRUE(at::equal(copy.wait(), at::full({3}, 1.0F)));
  EXPECT_EQ(take_host_waits(0), std::vector<std::string>{"synchronize an event"});
  EXPECT_TRUE(at::equal(HostCopy(at::full({3}, 3.0F)).wait(), at::full({3}, 3.0F)));
  finish(0);
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

// The first units of a step are gathered as soon as they are updated, while others still are.
TEST(FakeDevice, GathersBeginBeforeAllIsUpdated) {
  set_seed(1);
  run_ranks_on_devices(2, [](const World& world) {
    auto model = fully_shard(test::make_net(), Mesh::shard(world));
    const StreamsEndFirst streams_end_first(world);
    AdamW optimizer(model, {.lr = 1e-2});
    const at::Tensor x = test::make_example(0).x.to(world.device());
    for (int step = 0; step < 2; ++step) {
      model(x).sum().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    if (world.rank() == 0) {
      lose_wait(0, -1);
    }
    static_cast<void>(model(x));
    if (world.rank() == 0) {
      const std::vector<Wait> all = waits(0);
      const auto is_late = [](const Wait& wait) {
        return wait.stream != 0 && wait.waits_for == 0 && wait.behind <= 20;
      };
      const auto early = std::count_if(all.begin(), all.end(), [&](const Wait& wait) {
        const auto holds_up = [&](const Wait& other) {
          return is_late(other) && other.stream == wait.stream && other.given == wait.given;
        };
        return wait.stream != 0 && wait.waits_for == 0 &&
               std::none_of(all.begin(), all.end(), holds_up);
      });
      EXPECT_GE(early, 2);  // for a unit's update, and for its slot; and for nothing later
    }
  });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

// Sums that are NCCL's: near those in rank order, with the same bits in any order of what overlaps.
TEST(FakeDevice, RanksTrainWithNativeReduceScatter) {
  for (const size_t at : {0U, 1U, 2U, 3U, 24U}) {
    SCOPED_TRACE(scenarios()[at].name);
    Scenario scenario = without_offload(scenarios()[at]);
    scenario.ranks = 4;
    const Values native = on_devices(scenario, 0, ReduceScatter::Native);
    expect_close(on_devices(scenario, 0), native);
    EXPECT_TRUE(are_equal(native, on_devices(scenario, 1, ReduceScatter::Native)));
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

constexpr int64_t kNumel = 64;

// Of three ranks, with one segment of as many elements a rank.
std::unique_ptr<Communicator> with_a_segment(World& world, c10::ScalarType dtype,
                                             c10::ScalarType reduce_dtype) {
  auto communicator = world.make_communicator({0, 1, 3});
  SegmentSpec spec{.name = "unit", .shard_numel = kNumel, .dtype = dtype};
  spec.reduce_dtype = reduce_dtype;
  communicator->attach({spec}, world.device(), std::make_shared<MemoryLedger>());
  return communicator;
}

// One piece instead of three where the sum has the dtype that travels; else all three, as wide as
// the sum. By what a device holds, and by the plan.
TEST(FakeDevice, ReceivesLessWithNativeReduceScatter) {
  const auto received = [&](World world, c10::ScalarType dtype, c10::ScalarType reduce_dtype) {
    const auto communicator = with_a_segment(world, dtype, reduce_dtype);
    return communicator->most_received_bytes();
  };
  const auto check = [&](const World& world, bool is_native) {
    EXPECT_EQ(received(world, at::kFloat, at::kFloat), is_native ? 4 * kNumel : 3 * 4 * kNumel);
    EXPECT_EQ(received(world, at::kBFloat16, at::kFloat), 3 * 4 * kNumel);
    // fp32 where micro-batches were added up
    EXPECT_EQ(received(world, at::kBFloat16, at::kBFloat16),
              is_native ? 4 * kNumel : 3 * 4 * kNumel);
  };
  for (const ReduceScatter way : {ReduceScatter::RankOrder, ReduceScatter::Native}) {
    const bool is_native = way == ReduceScatter::Native;
    run_ranks_on_devices(
        3, [&](const World& world) { check(world, is_native); }, way);
    check(World::fake({.size = 3, .local_size = 3, .device = c10::kCUDA, .reduce_scatter = way}),
          is_native);
  }
}

// Each of the two others is sent its piece: by NCCL's sum in the dtype of the sum.
TEST(FakeDevice, CountsWhatNativeReduceScatterSends) {
  const auto sent = [&](World world, c10::ScalarType dtype, c10::ScalarType reduce_dtype) {
    const auto communicator = with_a_segment(world, dtype, reduce_dtype);
    const at::Tensor sum =
        at::empty({kNumel}, at::TensorOptions(reduce_dtype).device(world.device()));
    const Communicator::Reduction target{.shard = sum.data_ptr(), .dtype = reduce_dtype};
    static_cast<void>(communicator->acquire_reduce_buffer(0, target));
    communicator->reduce(0, target);
    communicator->finish_reductions();
    return communicator->counts().bytes_sent;
  };
  const auto check = [&](const World& world, bool is_native) {
    EXPECT_EQ(sent(world, at::kFloat, at::kFloat), 2 * 4 * kNumel);
    EXPECT_EQ(sent(world, at::kBFloat16, at::kFloat), 2 * (is_native ? 4 : 2) * kNumel);
    EXPECT_EQ(sent(world, at::kBFloat16, at::kBFloat16), 2 * 2 * kNumel);
  };
  for (const ReduceScatter way : {ReduceScatter::RankOrder, ReduceScatter::Native}) {
    const bool is_native = way == ReduceScatter::Native;
    run_ranks_on_devices(
        3, [&](const World& world) { check(world, is_native); }, way);
    check(World::fake({.size = 3, .local_size = 3, .device = c10::kCUDA, .reduce_scatter = way}),
          is_native);
  }
}

struct Told {
  std::vector<std::string> texts;  // by rank
  std::vector<ExitCode> codes;
};

// What each of three ranks ends with, where the network of rank 1 fails.
Told with_broken_network(int exchange) {
  Told told{std::vector<std::string>(3), std::vector<ExitCode>(3)};
  break_network(1, exchange);
  const auto train_or_tell = [&](World world) {
    const auto rank = static_cast<size_t>(world.rank());
    try {
      static_cast<void>(train(world, scenarios()[0]));
    } catch (const Error& error) {
      told.texts[rank] = error.what();
      told.codes[rank] = error.code();
      world.barrier();  // each has ended by itself, before the first that throws ends the groups
      throw;
    }
  };
  EXPECT_THROW(run_ranks_on_devices(3, train_or_tell), Error);
  break_network(-1, 0);
  static_cast<void>(take_faults());  // of what was left half-way
  return told;
}

TEST(FakeDevice, RanksThatCannotConnectSayWhichOneFailed) {
  const Told told = with_broken_network(0);
  for (const std::string& text : told.texts) {
    EXPECT_THAT(text,
                testing::AllOf(
                    testing::HasSubstr("cannot be connected over NCCL. On rank 1 (host "),
                    testing::HasSubstr("NCCL says: socketStartConnect: Connect to 10.0.0.7<41231> "
                                       "failed : Refused. NCCL_SOCKET_IFNAME is not set"),
                    testing::HasSubstr("The ranks met over threads of one process: try"),
                    testing::HasSubstr("NCCL_DEBUG=INFO")));
  }
  EXPECT_EQ(told.codes, std::vector<ExitCode>(3, ExitCode::Unavailable));
}

TEST(FakeDevice, RanksThatConnectSayThatTheFirstIsGone) {
  struct Gone final : c10d::HashStore {
    bool check(const std::vector<std::string>& /*keys*/) override {
      throw std::runtime_error("Broken pipe");
    }
  };
  detail::Connecting connecting(c10::make_intrusive<Gone>(), {1, 2, "lo"}, std::chrono::seconds(9));
  test::expect_error([&] { connecting.on_all_ranks(nullptr); }, ExitCode::PeerLost,
                     {"rank 0", "is gone for rank 1: Broken pipe"});
}

TEST(FakeDevice, RanksThatLoseTheNetworkSayWhatNcclSays) {
  const Told told = with_broken_network(20);
  EXPECT_THAT(told.texts[1],
              testing::HasSubstr("failed on rank 1. NCCL says: NET/IB: got completion"));
  for (const size_t rank : {0U, 2U}) {
    EXPECT_THAT(told.texts[rank],
                testing::AllOf(testing::HasSubstr("NCCL says: socketProgress: connection closed"),
                               testing::HasSubstr(" Rank 1 reported: NET/IB: got completion")));
  }
  EXPECT_EQ(told.codes, std::vector<ExitCode>(3, ExitCode::PeerLost));
}

// A step that clips nothing does not reduce a norm, where it would be told.
TEST(FakeDevice, RanksThatLoseTheNetworkUpdateAndSaveNothing) {
  const auto body = [](World world) {
    auto model = fully_shard(test::make_net(), Mesh::shard(world));
    const StreamsEndFirst streams_end_first(world);
    AdamW optimizer(model, {.lr = 1e-2});
    const at::Tensor x = test::make_example(0).x.to(world.device());
    model(x).sum().backward();
    world.barrier();
    break_network(1, 1);
    static_cast<void>(model(x));
    world.barrier();
    const auto expect_told = [](const auto& call) {
      test::expect_error(call, ExitCode::PeerLost, {"wait for the device", "NCCL says: "});
    };
    expect_told([&] { optimizer.step(); });
    expect_told([&] { static_cast<void>(full_state_dict(model)); });
    world.barrier();
  };
  run_ranks_on_devices(2, body);
  break_network(-1, 0);
  static_cast<void>(take_faults());  // of what was left half-way
}

// Blocks of one size: over NCCL a gather of one matches that of the other.
TEST(FakeDevice, RanksOutOfStepAreToldBeforeAnUpdate) {
  run_ranks_on_devices(2, [](const World& world) {
    test::Net net = test::make_net();
    if (world.rank() == 1) {
      std::swap(net->blocks[0], net->blocks[1]);
    }
    auto model = fully_shard(net, Mesh::shard(world));
    const StreamsEndFirst streams_end_first(world);
    model(test::make_example(0).x.to(world.device())).sum().backward();
    test::expect_error([&] { static_cast<void>(clip_grad_norm(model, 1.0)); },
                       ExitCode::RanksDisagree, {"ranks are out of step", "Rank "});
  });
}

// The engine's waits, by what they are between (src/comm/device.cpp).
constexpr const char* kGatherBegins = "a gather, for what was computed";
constexpr const char* kGathered = "computing, for a gather";
constexpr const char* kReductionBegins = "a reduction, for what was computed";
constexpr const char* kExchanged = "a sum, for its all-to-all";
constexpr const char* kSummed = "computing, for a sum";

std::string kind_of(const std::vector<Wait>& all, const Wait& wait) {
  if (wait.after == "all-to-all") {
    return kExchanged;
  }
  if (wait.stream == 0) {
    return wait.after == "all-gather" ? kGathered : kSummed;
  }
  const bool sums = std::any_of(all.begin(), all.end(), [&](const Wait& other) {
    return other.stream == wait.stream && other.after == "all-to-all";
  });
  return sums ? kReductionBegins : kGatherBegins;
}

// The stream waits for the same one again before it is given anything else.
bool is_followed_by_another(const std::vector<Wait>& all, size_t at) {
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(at);
  return std::any_of(first + 1, all.end(), [&](const Wait& later) {
    return later.stream == first->stream && later.waits_for == first->waits_for &&
           later.given == first->given;
  });
}

// By kind, how many of a scenario nothing may miss though they order something, and no other wait
// behind them does the same.
using Spare = std::map<std::string, int>;

struct Control {
  std::string what;
  Scenario scenario;
  size_t first;  // of its waits, in parts of twelve
  size_t last;
  Spare spare = {};
};

Scenario ending(size_t like) {
  Scenario scenario = plain(scenarios()[like]);
  scenario.ends_failing = true;
  return scenario;
}

// Of the second of three steps; where the second fails for good, from there to the end.
std::vector<Control> controls() {
  // Of the step after the exception, for slots that no access needs them for: two, or more where
  // autograd lets go of the failed graph late.
  const Spare some_gathers = {{kGatherBegins, 4}};
  return {{"plain", plain(scenarios()[0]), 4, 8},
          {"failing in backward", plain(scenarios()[7]), 4, 8, some_gathers},
          {"replicas", plain(scenarios()[24]), 6, 8},
          {"ends in forward", ending(6), 7, 12},
          {"ends in backward", ending(7), 7, 12}};
}

// Each wait of one stream for another, taken away alone, is missed; or it is one of those that
// others make up for.
TEST(FakeDevice, MissesEachWaitThatIsTakenAway) {
  std::map<std::string, int> missed;
  for (const auto& [what, scenario, first, last, spare] : controls()) {
    SCOPED_TRACE(what);
    lose_wait(0, -1);
    static_cast<void>(on_devices(scenario, 0));
    EXPECT_EQ(take_faults(), std::vector<std::string>{});
    const std::vector<Wait> all = waits(0);
    Spare not_missed;
    for (size_t at = all.size() * first / 12; at < all.size() * last / 12; ++at) {
      const std::string kind = kind_of(all, all[at]);
      lose_wait(0, static_cast<int>(at));
      if (is_missed(scenario)) {
        ++missed[kind];
      } else if (all[at].orders && !is_followed_by_another(all, at)) {
        ++not_missed[kind];
      }
    }
    for (const auto& [kind, count] : not_missed) {
      EXPECT_LE(count, spare.contains(kind) ? spare.at(kind) : 0) << kind;
    }
  }
  for (const char* const kind : {kGatherBegins, kGathered, kReductionBegins, kExchanged, kSummed}) {
    EXPECT_GT(missed[kind], 0) << kind;
  }
  lose_wait(0, -1);
}

}  // namespace
}  // namespace sherd::fake
