// The fused AdamW's own interface: numbers that make no sense, rates of groups, updates by
// parameter; and gradients that are sparse.

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/left_out_step.h"
#include "tests/support/odd_nets.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

TEST(AdamWOptions, ThatMakeNoSenseAreRefused) {
  auto model = fully_shard(make_net(), alone());
  const auto refused = [&](const AdamWOptions& options, const std::string& what) {
    expect_error([&] { AdamW bad(model, options); }, ExitCode::Usage, {"[AdamW] " + what});
    expect_error(
        [&] {
          AdamW bad(model, {}, {{[](const auto&) { return true; }, options}});
        },
        ExitCode::Usage, {"[AdamW] " + what});
  };
  refused({.lr = -1}, "lr must be a number of at least 0, got -1");
  refused({.lr = std::nan("")}, "lr must be a number of at least 0, got nan");
  refused({.betas = {1.0, 0.999}}, "betas must be at least 0 and below 1, got 1");
  refused({.betas = {0.9, -0.1}}, "betas must be at least 0 and below 1, got -0.1");
  refused({.eps = -1e-8}, "eps must be a number of at least 0, got -");
  refused({.weight_decay = -0.5}, "weight_decay must be a number of at least 0, got -0.5");
  AdamW optimizer(model, {.lr = 0, .betas = {0, 0}, .eps = 0, .weight_decay = 0});
  expect_error([&] { optimizer.set_lr(-1); }, ExitCode::Usage, {"[AdamW] lr must be"});
}

TEST(AdamWGroups, HaveRatesOfTheirOwn) {
  auto model = fully_shard(make_net(), alone());
  const auto is_head = [](const std::string& name) { return name.starts_with("head"); };
  AdamW optimizer(model, {.lr = 1e-2, .weight_decay = 0}, {{is_head, {.lr = 1e-3}}});
  EXPECT_EQ(optimizer.lr(0), 1e-3);
  EXPECT_EQ(optimizer.lr(1), 1e-2);
  optimizer.set_lr(1, 0.0);
  optimizer.set_lr(0, 0.5);
  EXPECT_EQ(optimizer.lr(0), 0.5);
  std::vector<at::Tensor> before;
  for (const ParameterShard& shard : model.parameter_shards()) {
    before.push_back(shard.value.clone());
  }
  model(make_example(0).x).sum().backward();
  optimizer.step();
  size_t i = 0;
  for (const ParameterShard& shard : model.parameter_shards()) {
    EXPECT_EQ(at::equal(before[i++], shard.value), !is_head(shard.name)) << shard.name;
  }
  optimizer.set_lr(0.25);
  EXPECT_EQ(optimizer.lr(0), 0.25);
  EXPECT_EQ(optimizer.lr(1), 0.25);
  expect_error([&] { optimizer.set_lr(2, 0.1); }, ExitCode::Usage,
               {"[AdamW] there is no group 2: groups are counted from 0, and the last, 1,"});
}

TEST(AdamWGroups, KeepTheirProportionsUnderASchedule) {
  auto model = fully_shard(make_net(), alone());
  const auto is_head = [](const std::string& name) { return name.starts_with("head"); };
  AdamW optimizer(model, {.lr = 1e-2, .weight_decay = 0}, {{is_head, {.lr = 1e-3}}});
  EXPECT_EQ(optimizer.groups(), 2U);
  for (const double factor : {0.5, 0.25, 1.0}) {  // of the rates at the start, not of the last
    optimizer.scale_lr(factor);
    EXPECT_EQ(optimizer.lr(0), factor * 1e-3);
    EXPECT_EQ(optimizer.options(1).lr, factor * 1e-2);
  }
  EXPECT_EQ(optimizer.options(0).weight_decay, AdamWOptions{}.weight_decay);
  EXPECT_EQ(optimizer.options(1).weight_decay, 0);
  expect_error([&] { optimizer.scale_lr(-1); }, ExitCode::Usage, {"[AdamW::scale_lr] the factor"});
  expect_error([&] { static_cast<void>(optimizer.options(2)); }, ExitCode::Usage,
               {"there is no group 2"});
}

// Trains with an optimizer for the weights and another for the biases, or one for both.
std::vector<at::Tensor> train_in_parts(World world, bool two_optimizers, int64_t& bytes) {
  auto model = fully_shard(make_net(), Mesh::shard(std::move(world)));
  const auto is_bias = [](const std::string& name) { return name.ends_with("bias"); };
  const auto is_weight = [&](const std::string& name) { return !is_bias(name); };
  std::vector<AdamW> optimizers;
  if (two_optimizers) {
    optimizers.emplace_back(model, AdamWOptions{.lr = 1e-2}, std::vector<ParamGroup>{},
                            AdamWMode{.contains = is_weight});
    bytes = model.memory().bytes(MemoryKind::OptimizerState);
    optimizers.emplace_back(model, AdamWOptions{.lr = 1e-1}, std::vector<ParamGroup>{},
                            AdamWMode{.contains = is_bias});
  } else {
    optimizers.emplace_back(model, AdamWOptions{.lr = 1e-2},
                            std::vector<ParamGroup>{{is_bias, {.lr = 1e-1}}});
    bytes = model.memory().bytes(MemoryKind::OptimizerState);
  }
  for (int step = 0; step < 3; ++step) {
    const Example example = make_example(step * model.world().size() + model.world().rank());
    sum_of_errors(model(example.x), example.y).backward();
    clip_grad_norm(model, 0.5);
    for (AdamW& optimizer : optimizers) {
      optimizer.step();
    }
    model.zero_grad();
  }
  return full_state_dict(model, {.rank0_only = false}).values();
}

TEST(AdamWOnChosenParameters, TwoAreOneWithTwoGroups) {
  run_ranks(2, [](World world) {
    int64_t all_bytes = 0;
    int64_t weights_bytes = 0;
    const auto expected = train_in_parts(world, false, all_bytes);
    const auto values = train_in_parts(world, true, weights_bytes);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(at::equal(values[i], expected[i])) << i;
    }
    EXPECT_LT(weights_bytes, all_bytes);
  });
}

TEST(AdamWSteps, AreLeftOutWhereTheDeviceSaysSo) {
  run_ranks(2, [](const World& world) { expect_left_out_where_not_finite(world); });
  auto model = fully_shard(make_net(), alone());
  AdamW optimizer(model, {}, {}, {.in_backward = true});
  expect_error([&] { optimizer.step(at::zeros({})); }, ExitCode::Usage,
               {"[AdamW::step] found_inf: the optimizer works in backward"});
}

TEST(AdamWOnChosenParameters, LeavesTheOthersAlone) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(std::move(world)));
    const auto is_head = [](const std::string& name) { return name.starts_with("head"); };
    AdamW optimizer(model, {}, {}, {.contains = is_head});
    const StateDict before = full_state_dict(model, {.rank0_only = false});
    sum_of_errors(model(make_example(0).x), make_example(0).y).backward();
    optimizer.step();
    const StateDict after = full_state_dict(model, {.rank0_only = false});
    for (const auto& item : before) {
      EXPECT_EQ(at::equal(item.value(), after[item.key()]), !is_head(item.key())) << item.key();
    }
    expect_error([&] { static_cast<void>(optimizer.steps_done("input.weight")); }, ExitCode::Usage,
                 {"'input.weight' is not a trainable parameter", "or none that this optimizer"});
    const auto none = [](const std::string&) { return false; };
    expect_error([&] { AdamW idle(model, {}, {}, {.contains = none}); }, ExitCode::Usage,
                 {"[AdamW] `contains` accepts no trainable parameter"});
  });
}

// In backward as well, where what nobody updates is not kept either.
TEST(AdamWOnChosenParameters, WorksInBackward) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(std::move(world)));
    const auto is_block = [](const std::string& name) { return name.starts_with("block1"); };
    AdamW optimizer(model, {}, {}, {.in_backward = true, .contains = is_block});
    const StateDict before = full_state_dict(model, {.rank0_only = false});
    for (int step = 0; step < 2; ++step) {
      sum_of_errors(model(make_example(step).x), make_example(step).y).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    const StateDict after = full_state_dict(model, {.rank0_only = false});
    for (const auto& item : before) {
      EXPECT_EQ(at::equal(item.value(), after[item.key()]), !is_block(item.key())) << item.key();
    }
  });
}

// Each parameter counts its own updates, and takes the count along.
TEST(AdamWSteps, AreCountedByParameter) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(builder<StackNet>()(), Mesh::shard(world));
    AdamW optimizer(model);
    for (const auto& order : std::vector<std::vector<size_t>>{{0, 1, 2}, {0, 2}, {0}}) {
      loss_of(model(odd_input(world.rank()), order)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(optimizer.steps_done(), 3);
    EXPECT_EQ(optimizer.steps_done("layer0.linear.weight"), 3);
    EXPECT_EQ(optimizer.steps_done("layer1.linear.bias"), 1);
    EXPECT_EQ(optimizer.steps_done("layer2.linear.weight"), 2);
    expect_error([&] { static_cast<void>(optimizer.steps_done("layer3")); }, ExitCode::Usage,
                 {"[AdamW] 'layer3' is not a trainable parameter"});
    const OptimStateDict dict = full_optim_state_dict(model, optimizer);
    if (world.rank() == 0) {
      EXPECT_EQ(dict["layer1.linear.bias"].step, 1);
    }
    auto other = fully_shard(builder<StackNet>()(), Mesh::shard(world));
    AdamW restored(other);
    load_full_optim_state_dict(other, restored, dict);
    EXPECT_EQ(restored.steps_done(), 3);
    EXPECT_EQ(restored.steps_done("layer1.linear.bias"), 1);
    EXPECT_EQ(restored.steps_done("layer2.linear.weight"), 2);
  });
}

/// An embedding whose gradients are sparse, used once or twice.
struct SparseNetImpl : torch::nn::Module {
  SparseNetImpl()
      : table(register_module("table", Unit<torch::nn::Embedding>(
                                           torch::nn::EmbeddingOptions(16, kOdd).sparse(true)))),
        layer(register_module("layer", Unit<Layer>())) {}
  at::Tensor forward(const at::Tensor& ids) { return layer(table(ids)) + table(ids + 1); }
  Unit<torch::nn::Embedding> table;
  Unit<Layer> layer;
};
TORCH_MODULE(SparseNet);

TEST(SparseGradients, AreAddedIntoTheirUnits) {
  for (const int ranks : {1, 2}) {
    SparseNet plain = builder<SparseNet>()();
    const auto loss = [](auto& model, int64_t rank) {
      return loss_of(model(at::arange(3, at::kLong) + 2 * rank));
    };
    for (int64_t rank = 0; rank < ranks; ++rank) {
      loss(plain, rank).backward();
    }
    run_ranks(ranks, [&](World world) {
      auto model = fully_shard(builder<SparseNet>()(), Mesh::shard(world));
      model.set_gradient_divide_factor(1.0);
      loss(model, world.rank()).backward();
      for (const ParameterShard& shard : model.parameter_shards()) {
        const at::Tensor whole =
            plain->named_parameters()[shard.name].grad().to_dense().reshape({-1});
        EXPECT_TRUE(at::allclose(whole.narrow(0, shard.begin, shard.end - shard.begin),
                                 shard.gradient, 1e-5, 1e-6))
            << shard.name;
      }
    });
  }
}

}  // namespace
}  // namespace sherd::test
