// Ranks that are out of step by units of equal size: they are told, and nothing of the other unit
// is added up.

#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::test {
namespace {

using UnitOrder = std::vector<size_t>;

// Runs one step on two ranks, with the units in the order of each rank, and expects an error: over
// threads, shared memory and process groups. Over the last the first gather says so.
template <class Step>
void expect_told(const Step& step, const std::vector<std::string>& parts) {
  const auto body = [&](World world) {
    auto model = fully_shard(builder<StackNet>()(), Mesh::shard(world), {.prefetch_depth = 0});
    AdamW optimizer(model);
    const bool over_groups = world.transport().starts_with("process groups");
    expect_error(
        [&] { step(model, optimizer, world.rank()); }, ExitCode::RanksDisagree,
        over_groups ? std::vector<std::string>{"all-gather of unit 'layer", "ranks are out of step"}
                    : parts);
    if (testing::Test::HasFailure()) {
      throw std::runtime_error("another message");
    }
  };
  run_ranks(2, body);
  for (const Transport transport : kTransports) {
    EXPECT_EQ(run_processes_over(transport, 2, body), (std::vector<int>{0, 0}));
  }
}

TEST(SameCollectives, GradientsOfAnotherUnitAreNotAddedUp) {
  expect_told(
      [](auto& model, AdamW& /*optimizer*/, int rank) {
        const UnitOrder order = rank == 0 ? UnitOrder{0, 1, 2} : UnitOrder{1, 0, 2};
        loss_of(model(odd_input(rank), order)).backward();
      },
      {"in backward of step 1", "reduction of unit 'layer2'", "ranks are out of step"});
}

TEST(SameCollectives, AnUpdateAfterGathersOfOtherUnitsIsRefused) {
  expect_told(
      [](auto& model, AdamW& optimizer, int rank) {
        loss_of(model(odd_input(rank))).backward();
        {
          const at::NoGradGuard no_grad;
          static_cast<void>(model(odd_input(rank), rank == 0 ? UnitOrder{0, 1} : UnitOrder{1, 0}));
        }
        optimizer.step();
      },
      {"all-reduce", "ranks are out of step"});
}

}  // namespace
}  // namespace sherd::test
