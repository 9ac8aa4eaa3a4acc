// Ranks that are out of step over process groups, by units of equal size: they are told, and
// nothing of the other unit is added up.

#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"

namespace sherd::test {
namespace {

using Order = std::vector<size_t>;

// Runs one step on two ranks, with the units in the order of each rank, and expects an error.
template <class Step>
void expect_told(const Step& step, const std::vector<std::string>& parts) {
  const auto statuses = run_processes_over(Transport::ProcessGroups, 2, [&](World world) {
    auto model = fully_shard(builder<StackNet>()(), Mesh::shard(world), {.prefetch_depth = 0});
    AdamW optimizer(model);
    expect_error([&] { step(model, optimizer, world.rank()); }, ExitCode::RanksDisagree, parts);
    if (testing::Test::HasFailure()) {
      throw std::runtime_error("another message");
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(SameCollectives, GradientsOfAnotherUnitAreNotAddedUp) {
  expect_told(
      [](auto& model, AdamW& /*optimizer*/, int rank) {
        const Order order = rank == 0 ? Order{0, 1, 2} : Order{1, 0, 2};
        loss_of(model(odd_input(rank), order)).backward();
      },
      {"in backward of step 1", "exchange of gradients of unit 'layer2'", "ranks are out of step"});
}

TEST(SameCollectives, AnUpdateAfterGathersOfOtherUnitsIsRefused) {
  expect_told(
      [](auto& model, AdamW& optimizer, int rank) {
        loss_of(model(odd_input(rank))).backward();
        {
          const at::NoGradGuard no_grad;
          static_cast<void>(model(odd_input(rank), rank == 0 ? Order{0, 1} : Order{1, 0}));
        }
        optimizer.step();
      },
      {"all-reduce", "ranks are out of step"});
}

}  // namespace
}  // namespace sherd::test
