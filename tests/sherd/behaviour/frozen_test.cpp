// Frozen parameters: before and after sharding, alone and mixed with trainable ones.

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

}  // namespace
}  // namespace sherd::test
