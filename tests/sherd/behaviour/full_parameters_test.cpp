// Whole parameters and moments visited on rank 0: one tensor of memory at a time, each shard sent
// once, and a visitor that fails.

#include <map>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/support/allocated_bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

constexpr int64_t kLargeRows = 1000;
constexpr int64_t kLargeBytes = kLargeRows * kLargeRows * 4;
constexpr int64_t kSlackBytes = 32 << 10;  // counters and texts of the collectives

torch::nn::Sequential make_large() {
  return torch::nn::Sequential(Unit<torch::nn::Linear>(kLargeRows, kLargeRows),
                               Unit<torch::nn::Linear>(kLargeRows, kLargeRows));
}

TEST(ForEachFullParameter, HoldsOneTensorAtATime) {
  run_ranks(3, [](World world) {
    auto model = fully_shard(make_large(), Mesh::shard(world));
    AdamW optimizer(model);
    const int64_t limit = world.rank() == 0 ? kLargeBytes : 0;
    int64_t visited = 0;
    {
      const AllocatedBytes allocated;
      for_each_full_parameter(model, [&](const FullParameter&) { ++visited; });
      EXPECT_LE(allocated.peak(), limit + (1 << 20) + kSlackBytes);
    }
    {
      const AllocatedBytes allocated;
      for_each_full_optim_state(model, optimizer,
                                [&](const std::string&, const OptimState&) { ++visited; });
      EXPECT_LE(allocated.peak(), 2 * limit + (1 << 20) + kSlackBytes);
    }
    EXPECT_EQ(visited, world.rank() == 0 ? 4 + 4 : 0);
  });
}

/// Adds up the bytes that a rank exchanges outside the model.
class ExchangedBytes final : public CollectiveObserver {
 public:
  void ended(const Collective& collective) override {
    bytes[collective.operation] += collective.bytes;
  }
  std::map<Collective::Operation, int64_t> bytes;
};

TEST(ForEachFullParameter, SendsEachShardToRank0Alone) {
  using Operation = Collective::Operation;
  EXPECT_EQ(run_processes(3,
                          [](World world) {
                            auto model = fully_shard(make_large(), Mesh::shard(world));
                            AdamW optimizer(model);
                            const auto exchanged = std::make_shared<ExchangedBytes>();
                            world.set_observer(exchanged);
                            for_each_full_parameter(model, [](const FullParameter&) {});
                            for_each_full_optim_state(model, optimizer,
                                                      [](const auto&, const auto&) {});
                            int64_t held = 0;
                            int64_t whole = 0;
                            for (const ParameterShard& shard : model.parameter_shards()) {
                              held += 3 * shard.value.nbytes();
                              whole += 3 * 4 * c10::multiply_integers(shard.shape);
                            }
                            TORCH_CHECK(exchanged->bytes[Operation::Broadcast] == 0, "broadcast");
                            const int64_t expected = world.rank() == 0 ? whole - held : held;
                            TORCH_CHECK(exchanged->bytes[Operation::Send] == expected, "sent ",
                                        exchanged->bytes[Operation::Send], " bytes of ", expected);
                          }),
            (std::vector<int>{0, 0, 0}));
}

// The failing rank still receives what the others send until all have agreed.
TEST(ForEachFullParameter, StopsVisitingAfterAFailure) {
  run_ranks(3, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    int visited = 0;
    expect_error(
        [&] {
          for_each_full_parameter(model, [&](const FullParameter&) {
            ++visited;
            throw Error(ExitCode::StorageIo, "the disk is full");
          });
        },
        ExitCode::StorageIo, {"rank 0: the disk is full"});
    EXPECT_EQ(visited, world.rank() == 0 ? 1 : 0);
    EXPECT_NO_THROW(for_each_full_parameter(model, [](const FullParameter&) {}));
  });
}

TEST(ForEachFullParameter, TellsEveryRankThatTheVisitorFailed) {
  run_ranks(3, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    AdamW optimizer(model);
    expect_error(
        [&] {
          for_each_full_parameter(model, [](const FullParameter& p) {
            if (p.name == "head.weight") {
              throw Error(ExitCode::StorageIo, "the disk is full");
            }
          });
        },
        ExitCode::StorageIo,
        {"[for_each_full_parameter] the visitor failed, rank 0: the disk is full"});
    expect_error(
        [&] {
          for_each_full_optim_state(model, optimizer, [](const std::string&, const OptimState&) {
            throw Error(ExitCode::StorageIo, "the disk is full");
          });
        },
        ExitCode::StorageIo,
        {"[for_each_full_optim_state] the visitor failed, rank 0: the disk is full"});
  });
}

}  // namespace
}  // namespace sherd::test
