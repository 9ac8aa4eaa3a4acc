// Frozen parameters: before and after sharding, alone and mixed with trainable ones.

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/seeded.h"

namespace sherd::test {
namespace {

NestedNet make(const std::vector<std::string>& frozen) {
  auto net = seeded(11, [] { return NestedNet(); });
  for (const auto& item : net->named_parameters()) {
    for (const std::string& name : frozen) {
      if (item.key().starts_with(name)) {
        item.value().requires_grad_(false);
      }
    }
  }
  return net;
}

TEST(Frozen, MixedInAUnitAndInTheRoot) {
  expect_equals_plain([] { return make({"a.before.weight", "b.inner", "head.bias"}); }, kSquares);
}

TEST(Frozen, WholeUnits) {
  expect_equals_plain([] { return make({"b"}); }, kSquares);
  expect_equals_plain([] { return make({"a", "head"}); }, kSquares);
}

TEST(Frozen, NeedsNeitherMasterNorMomentsNorGradients) {
  auto model = fully_shard(make({"a", "b", "head"}), Mesh::shard(World::alone()),
                           {.precision = {.param_dtype = at::kBFloat16}});
  AdamW optimizer(model);
  EXPECT_GT(model.memory().bytes(MemoryKind::TravellingShard), 0);
  EXPECT_EQ(model.memory().total_bytes(), model.memory().bytes(MemoryKind::TravellingShard));
  EXPECT_FALSE(model(odd_input(1)).requires_grad());
}

// Frozen only after sharding, and after one step: what is frozen keeps its value bit by bit, though
// it has moments and weight decay.
TEST(Frozen, AfterSharding) {
  for (const std::vector<std::string>& frozen :
       std::vector<std::vector<std::string>>{{"a.before.weight"}, {"a.inner", "b"}}) {
    expect_equals_plain([] { return make({}); },
                        [&](auto& model, auto& net, const Place& place) {
                          for (const auto& item : net->named_parameters()) {
                            for (const std::string& name : frozen) {
                              if (place.step >= 1 && item.key().starts_with(name)) {
                                item.value().requires_grad_(false);
                                if constexpr (std::is_same_v<decltype(model), decltype(net)>) {
                                  item.value().mutable_grad().reset();  // the plain model's
                                }
                              }
                            }
                          }
                          return kSquares(model, net, place);
                        },
                        {});
  }
}

TEST(Frozen, UnfrozenAfterShardingIsRefused) {
  auto net = make({"b.before"});
  auto model = fully_shard(net, Mesh::shard(World::alone()));
  net->b->before->bias.requires_grad_(true);
  expect_error([&] { loss_of(model(odd_input(1))).backward(); }, ExitCode::Usage,
               {"[backward] parameter 'b.before.bias' got a gradient",
                "shard it trainable, and freeze it afterwards"});
  net->b->before->bias.requires_grad_(false);
  model.zero_grad();
  EXPECT_NO_THROW(loss_of(model(odd_input(1))).backward());
}

/// Fails the first wait for a gather of unit 'a', and counts those that end.
class FailingWait final : public CollectiveObserver {
 public:
  void waiting(const Collective& collective) override {
    if (is_of_a(collective) && !std::exchange(has_failed_, true)) {
      throw Error(ExitCode::OutOfMemory, "a fault");
    }
  }
  void ended(const Collective& collective) override { ended_ += is_of_a(collective) ? 1 : 0; }
  [[nodiscard]] int gathers_ended() const { return ended_; }

 private:
  static bool is_of_a(const Collective& collective) {
    return collective.operation == Collective::Operation::Gather && collective.unit == "a";
  }
  bool has_failed_ = false;
  int ended_ = 0;
};

// A unit with frozen and trainable parameters has two segments. Nothing may write into memory that
// is given back.
TEST(Frozen, AFailedWaitForOneSegmentWaitsForTheOther) {
  World world = World::alone();
  const auto observer = std::make_shared<FailingWait>();
  world.set_observer(observer);
  auto model = fully_shard(make({"a.before.weight"}), Mesh::shard(world));
  expect_error([&] { static_cast<void>(model(odd_input(1))); }, ExitCode::OutOfMemory,
               {"wait for the all-gather of unit 'a'", "a fault"});
  EXPECT_EQ(observer->gathers_ended(), 1);
  EXPECT_NO_THROW(loss_of(model(odd_input(1))).backward());
}

}  // namespace
}  // namespace sherd::test
