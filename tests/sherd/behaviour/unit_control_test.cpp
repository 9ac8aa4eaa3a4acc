// Units gathered and freed by hand, and settings of units that change between steps.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include "sherd/state_dict.h"
#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

using Filter = ShardedModule::UnitFilter;

Filter only(const std::string& name) {
  return [name](const std::string& unit) { return unit == name; };
}

TEST(Unshard, ShowsParametersUntilTheyAreReshardedOrUsed) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    const StateDict whole = full_state_dict(model, {.rank0_only = false});
    const at::Tensor weight = model.module()->blocks[0]->up->weight;
    const at::NoGradGuard no_grad;
    model.unshard(only("block0"));
    EXPECT_TRUE(at::equal(weight, whole["block0.up.weight"]));
    const auto gathers_of = [&](const auto& work) {
      const auto before = model.counts().gathers;
      work();
      return model.counts().gathers - before;
    };
    EXPECT_EQ(gathers_of([&] { model.unshard(only("block0")); }), 0);  // it is there already
    model.reshard(only("block0"));
    model.reshard();
    const auto all = gathers_of([&] { model.unshard(); });
    EXPECT_EQ(all, 4);  // the root and three blocks
    EXPECT_TRUE(at::equal(weight, whole["block0.up.weight"]));
    EXPECT_TRUE(at::equal(model.module()->head->bias, whole["head.bias"]));
    EXPECT_EQ(gathers_of([&] { static_cast<void>(model(make_example(0).x)); }), 0);
    EXPECT_EQ(gathers_of([&] { static_cast<void>(model(make_example(0).x)); }), all);
  });
}

TEST(Unshard, BeforeStepsChangesNothingElse) {
  const auto loss = [](auto& model, auto& /*net*/, const Place& place) {
    using Model = std::decay_t<decltype(model)>;
    if constexpr (std::is_base_of_v<ShardedModule, Model>) {
      model.unshard(place.step % 2 == 0 ? Filter{} : only("layer1"));
    }
    return loss_of(model(input_of(place)));
  };
  expect_equals_plain(builder<StackNet>(), loss);
}

TEST(Unshard, InsideAForwardIsRefused) {
  auto model = fully_shard(make_net(), alone());
  const auto inside = [&](auto& net, const at::Tensor& x) {
    expect_error([&] { model.unshard(); }, ExitCode::Usage,
                 {"[unshard] was called inside the forward"});
    expect_error([&] { model.reshard(); }, ExitCode::Usage,
                 {"[reshard] was called inside the forward"});
    expect_error([&] { model.set_reshard_after_forward(true); }, ExitCode::Usage,
                 {"[set_reshard_after_forward] was called inside the forward"});
    return net.forward(x);
  };
  static_cast<void>(model.run(inside, make_example(0).x));
}

TEST(ReshardAfterForward, ChangesBetweenSteps) {
  const auto loss = [](auto& model, auto& /*net*/, const Place& place) {
    using Model = std::decay_t<decltype(model)>;
    if constexpr (std::is_base_of_v<ShardedModule, Model>) {
      model.set_reshard_after_forward(place.step % 2 == 0);
    }
    return loss_of(model(input_of(place)));
  };
  expect_equals_plain(builder<StackNet>(), loss);
}

TEST(ReshardAfterForward, CostsTheGathersOfTheBackward) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world), {.prefetch_depth = 0});
    const auto gathers_of_a_step = [&](bool reshard) {
      model.set_reshard_after_forward(reshard);
      const auto before = model.counts().gathers;
      model(make_example(0).x).sum().backward();
      model.zero_grad();
      return model.counts().gathers - before;
    };
    const auto freed = gathers_of_a_step(true);
    EXPECT_LT(gathers_of_a_step(false), freed);
    EXPECT_EQ(gathers_of_a_step(true), freed);
  });
}

TEST(ReshardAfterForward, IsFixedWherePiecesWereLaidOutForIt) {
  run_ranks(4, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world), {.reshard_after_forward_size = 2});
    expect_error([&] { model.set_reshard_after_forward(false); }, ExitCode::Usage,
                 {"[set_reshard_after_forward]", "reshard_after_forward_size 2"});
  });
}

/// Looks its rows up: its backward needs the indices alone.
struct TableImpl : torch::nn::Module {
  TableImpl() : rows(register_module("rows", torch::nn::Embedding(11, kOdd))) {}
  at::Tensor forward(const at::Tensor& indices) { return rows(indices); }
  torch::nn::Embedding rows;
};
TORCH_MODULE(Table);

struct TableNetImpl : torch::nn::Module {
  TableNetImpl()
      : table(register_module("table", Unit<Table>())),
        layer(register_module("layer", Unit<Layer>())) {}
  at::Tensor forward(const at::Tensor& x) {
    return layer(table((x * 3).abs().to(at::kLong).clamp_max(10)).sum(1));
  }
  Unit<Table> table;
  Unit<Layer> layer;
};
TORCH_MODULE(TableNet);

TEST(UnshardInBackward, CanBeLeftOutWhereNoGradientNeedsTheParameters) {
  const auto loss = [](auto& model, auto& /*net*/, const Place& place) {
    using Model = std::decay_t<decltype(model)>;
    if constexpr (std::is_base_of_v<ShardedModule, Model>) {
      model.set_unshard_in_backward(place.step % 2 == 0, only("table"));
    }
    return loss_of(model(input_of(place)));
  };
  expect_equals_plain(builder<TableNet>(), loss);
  run_ranks(2, [](World world) {
    auto model = fully_shard(builder<TableNet>()(), Mesh::shard(world));
    const auto gathers_of_a_step = [&](bool unshard) {
      model.set_unshard_in_backward(unshard, only("table"));
      const auto before = model.counts().gathers;
      loss_of(model(odd_input(1))).backward();
      model.zero_grad();
      return model.counts().gathers - before;
    };
    static_cast<void>(gathers_of_a_step(true));  // the order is known after it
    const auto with = gathers_of_a_step(true);
    EXPECT_EQ(gathers_of_a_step(false), with - 1);
  });
}

}  // namespace
}  // namespace sherd::test
