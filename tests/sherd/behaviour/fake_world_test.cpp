// Ranks that are not there hold what real ones do, byte by byte, and call in the same order.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/meshes.h"
#include "tests/support/processes.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

class Calls final : public CollectiveObserver {
 public:
  void started(const Collective& collective) override {
    if (collective.segment >= 0) {
      lines += std::string(name_of(collective.operation)) + " " + collective.unit + " " +
               std::to_string(collective.bytes) + "\n";
    }
  }
  std::string lines;
};

struct FakeRun {
  ShardOptions options;
  int micro_batches = 1;
};

/// What a rank did and held in two steps, as one text to be compared.
std::string trace_of(World world, const FakeRun& c, bool is_fake) {
  const auto calls = std::make_shared<Calls>();
  world.set_observer(calls);
  auto model =
      fully_shard(on_meta([] { return Net(); }), mesh_for(world, c.options.strategy), c.options);
  initialize(model, 1, [](ParameterInit& parameter) { parameter.fill_constant(0.5); });
  AdamW optimizer(model, {.lr = 1e-2});
  std::string text;
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < c.micro_batches; ++micro) {
      const Example example = make_example(micro);
      const at::Tensor target = is_fake ? example.y.to(at::kMeta) : example.y;
      (model(example.x).to(at::kFloat) - target).square().sum().backward();
      text += "held " + std::to_string(model.memory().total_bytes()) + "\n";
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  text += "peak " + std::to_string(model.memory().peak_bytes()) + "\n";
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    text += std::to_string(model.memory().bytes(static_cast<MemoryKind>(kind))) + "\n";
  }
  return text + calls->lines;
}

std::vector<FakeRun> cases() {
  std::vector<FakeRun> all;
  for (const Strategy strategy : kStrategies) {
    for (const bool narrow : {false, true}) {
      for (const int micro_batches : {1, 2}) {
        FakeRun c{{.strategy = strategy}, micro_batches};
        if (narrow) {
          c.options.precision.param_dtype = at::kBFloat16;
        }
        all.push_back(c);
      }
    }
  }
  return all;
}

using Run = std::function<std::vector<int>(const std::function<void(World)>& body)>;

void expect_as_real(const FakeRanks& fake, const Run& run) {
  std::vector<std::string> expected;
  for (const FakeRun& c : cases()) {
    expected.push_back(trace_of(World::fake(fake), c, /*is_fake=*/true));
  }
  const auto statuses = run([&](World world) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const FakeRun c = cases()[i];
      const std::string real = trace_of(world, c, /*is_fake=*/false);
      TORCH_CHECK(world.rank() != 0 || real == expected[i], "case ", i, " of ", fake.size,
                  " ranks. Real:\n", real, "Fake:\n", expected[i]);
    }
  });
  EXPECT_EQ(statuses, std::vector<int>(static_cast<size_t>(fake.size), 0));
}

Run over(Transport transport, int ranks) {
  return [=](const std::function<void(World)>& body) {
    return run_processes_over(transport, ranks, body);
  };
}

TEST(FakeWorld, HoldsAndCallsWhatARealOneDoes) {
  for (const int ranks : {1, 2, 4}) {
    expect_as_real({.size = ranks, .local_size = ranks}, over(Transport::SharedMemory, ranks));
  }
}

TEST(FakeWorld, OfHostsWithOneRankIsLikeProcessGroups) {
  expect_as_real({.size = 2, .local_size = 1}, over(Transport::ProcessGroups, 2));
}

TEST(FakeWorld, OfHostsWithSeveralRanksIsLikeTheirs) {
  if (!can_play_hosts()) {
    GTEST_SKIP() << "ranks play several hosts as several users, which takes root";
  }
  expect_as_real({.size = 4, .local_size = 2}, [](const std::function<void(World)>& body) {
    return run_processes_on_hosts(2, 2, body);
  });
}

TEST(FakeWorld, TakesNoMemory) {
  World world = World::fake({.size = 8, .local_size = 8});
  auto model =
      fully_shard(on_meta([] { return torch::nn::Linear(int64_t{1} << 20, int64_t{1} << 20); }),
                  Mesh::shard(world));
  initialize(model, 1, [](ParameterInit& parameter) { parameter.fill_constant(0); });
  EXPECT_GT(model.memory().total_bytes(), int64_t{1} << 39);
}

TEST(FakeWorld, RefusesRanksThatDoNotFillTheirHosts) {
  expect_error([] { (void)World::fake({.size = 6, .local_size = 4}); }, ExitCode::Usage,
               {"[World::fake] 6 ranks, 4 on each host"});
  expect_error([] { (void)World::fake({.size = 0}); }, ExitCode::Usage, {"both are at least 1"});
}

}  // namespace
}  // namespace sherd::test
