// What is done with a sharded model that cannot work: an error that names what, where, and what to
// do instead. (Parameters that cannot be cut, a model sharded twice, forward on meta: see
// failures_test.cpp.)

#include <sstream>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/expect_error.h"
#include "tests/support/meshes.h"
#include "tests/support/odd_nets.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

Mesh alone() {
  return Mesh::shard(World::alone());
}

/// As expect_error(), for what LibTorch throws when it is told to.
template <class Body>
void expect_c10_error(const Body& body, const std::vector<std::string>& parts) {
  try {
    body();
  } catch (const c10::Error& error) {
    for (const std::string& part : parts) {
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr(part));
    }
    return;
  }
  ADD_FAILURE() << "no error; expected one with: " << parts.front();
}

/// Calls `wrong(net, model)` before, between and after a few steps, and throws unless the steps
/// give the bits of a run without it.
template <class Wrong>
void expect_unharmed(const Wrong& wrong) {
  run_ranks(2, [&](World world) {
    std::vector<std::vector<at::Tensor>> outcomes;
    for (const bool tried : {false, true}) {
      auto net = make_net();
      auto model = fully_shard(net, Mesh::shard(world));
      AdamW optimizer(model, {.lr = 1e-2});
      for (int step = 0; step < 3; ++step) {
        if (tried) {
          wrong(net, model);
        }
        const Example example = make_example(2 * step + world.rank());
        sum_of_errors(model(example.x), example.y).backward();
        if (tried) {
          wrong(net, model);
        }
        optimizer.step();
        optimizer.zero_grad();
      }
      auto& values = outcomes.emplace_back();
      for (const ParameterShard& shard : model.parameter_shards()) {
        values.push_back(shard.value.clone());
      }
    }
    for (size_t i = 0; i < outcomes[0].size(); ++i) {
      EXPECT_TRUE(at::equal(outcomes[0][i], outcomes[1][i])) << "parameter " << i;
    }
  });
}

TEST(WrongUse, ToOfASharded) {
  const std::vector<std::string> parts = {
      "[to] unit 'block1' is sharded, and its parameters cannot be converted or moved: call to() "
      "before fully_shard(), or choose the dtype with Precision::param_dtype."};
  expect_unharmed([&](Net& net, auto& /*model*/) {
    auto& unit = net->blocks[1];
    const at::Device cpu(at::kCPU);
    expect_error([&] { unit->to(at::kBFloat16); }, ExitCode::Usage, parts);
    expect_error([&] { unit->to(cpu); }, ExitCode::Usage, parts);
    expect_error([&] { unit->to(cpu, at::kDouble); }, ExitCode::Usage, parts);
    // The whole model meets a parameter of the root first.
    expect_c10_error([&] { net->to(at::kBFloat16); },
                     {"parameter 'input.weight' of unit 'root' was used while it was sharded",
                      "to(), clone() and torch::save() cannot be used on a sharded module."});
  });
}

TEST(WrongUse, ToBeforeShardingIsWhatToDo) {
  auto net = make_net();
  net->to(at::kBFloat16);
  auto model = fully_shard(net, alone());
  EXPECT_EQ(model(make_example(0).x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
}

struct CopyableImpl : torch::nn::Cloneable<CopyableImpl> {
  CopyableImpl() { reset(); }
  void reset() override {
    weight = register_parameter("weight", seeded(3, [] { return at::randn({4, 5}); }));
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Copyable);
struct CopyableNetImpl : torch::nn::Cloneable<CopyableNetImpl> {
  CopyableNetImpl() { reset(); }
  void reset() override { unit = register_module("unit", Unit<Copyable>()); }
  at::Tensor forward(const at::Tensor& x) { return unit(x); }
  Unit<Copyable> unit{nullptr};
};
TORCH_MODULE(CopyableNet);

TEST(WrongUse, CloneOfASharded) {
  CopyableNet net;
  const auto copy = net->clone();  // before sharding it works, units and all
  EXPECT_TRUE(at::equal(copy->parameters()[0], net->parameters()[0]));
  auto model = fully_shard(net, alone());
  const std::vector<std::string> parts = {
      "[clone] unit 'unit' is sharded, and cannot be copied: build the model once more and shard "
      "that, or clone it before fully_shard()."};
  expect_error([&] { net->clone(); }, ExitCode::Usage, parts);
  expect_error([&] { net->unit->clone(); }, ExitCode::Usage, parts);
  Copyable root;
  auto other = fully_shard(root, alone());
  expect_c10_error([&] { root->clone(); }, {"parameter 'weight' of unit 'root' was used while"});
  EXPECT_NO_THROW(model(at::ones({2, 5})));
}

TEST(WrongUse, SaveOfASharded) {
  expect_unharmed([](Net& net, auto& /*model*/) {
    expect_c10_error(
        [&] {
          std::ostringstream file;
          torch::save(net, file);
        },
        {"was used while it was sharded", "torch::save() cannot be used on a sharded module."});
  });
}

TEST(WrongUse, AParameterOutsideItsUnit) {
  expect_unharmed([](Net& net, auto& /*model*/) {
    // Between forward and backward it may be there: of a unit that has been freed it is not.
    expect_c10_error(
        [&] { net->blocks[0]->up->weight.sum(); },
        {"parameter 'block0.up.weight' of unit 'block0' was used while it was sharded. Use it "
         "inside the unit's forward, in unit.run(…), or, of the root, inside a call of the "
         "model's handle."});
    expect_c10_error([&] { net->blocks[0]->up(at::ones({1, 13})); }, {"of unit 'block0' was used"});
  });
}

const std::vector<std::string> kNoGradient = {
    "' is sharded, and its gradient is not on the module: use sherd::AdamW, sherd::clip_grad_norm "
    "and ShardedModule::zero_grad() in place of torch::optim, torch::nn::utils and "
    "Module::zero_grad(), and read ParameterShard::gradient."};

TEST(WrongUse, ZeroGradOfTheModule) {
  expect_unharmed([](Net& net, auto& /*model*/) {
    expect_error([&] { net->zero_grad(); }, ExitCode::Usage, kNoGradient);
    expect_error([&] { net->blocks[2]->zero_grad(); }, ExitCode::Usage, kNoGradient);
  });
}

// LibTorch's would find no gradients, and do nothing in silence.
TEST(WrongUse, OptimizerOfLibTorchOverTheModulesParameters) {
  expect_unharmed([](Net& net, auto& /*model*/) {
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    expect_error([&] { optimizer.zero_grad(); }, ExitCode::Usage, kNoGradient);
    expect_error([&] { optimizer.step(); }, ExitCode::Usage, kNoGradient);
  });
}

TEST(WrongUse, ClipGradNormOfLibTorch) {
  expect_unharmed([](Net& net, auto& /*model*/) {
    expect_error([&] { torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0); },
                 ExitCode::Usage, kNoGradient);
  });
}

TEST(WrongUse, ReadingTheGradientOfASharded) {
  expect_unharmed([](Net& net, auto& /*model*/) {
    expect_error([&] { net->head->weight.grad(); }, ExitCode::Usage,
                 {"[grad] parameter 'head.weight' is sharded"});
  });
}

// An ignored parameter is the module's own, gradient and all.
TEST(WrongUse, IsNotThatOfIgnoredParameters) {
  auto net = make_net();
  auto model = fully_shard(
      net, alone(), {.ignored = [](const std::string& name) { return name.starts_with("head"); }});
  model(make_example(0).x).sum().backward();
  EXPECT_TRUE(net->head->weight.grad().defined());
  EXPECT_NO_THROW(net->head->zero_grad());
}

TEST(WrongUse, StepWithoutBackward) {
  const std::vector<std::string> parts = {
      "[AdamW::step] no parameter has a gradient: call backward() on a loss of this model after "
      "zero_grad() and before each step()."};
  run_ranks(2, [&](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    AdamW optimizer(model);
    expect_error([&] { optimizer.step(); }, ExitCode::Usage, parts);
    EXPECT_EQ(optimizer.steps_done(), 0);
    model(make_example(0).x).sum().backward();
    EXPECT_NO_THROW(optimizer.step());
    optimizer.zero_grad();
    expect_error([&] { optimizer.step(); }, ExitCode::Usage, parts);
    EXPECT_EQ(optimizer.steps_done(), 1);
  });
}

TEST(WrongUse, MeshThatDoesNotMatchTheWorldOrTheStrategy) {
  run_ranks(4, [](World world) {
    for (const int size : {0, -1, 3, 5}) {
      expect_error([&] { static_cast<void>(Mesh::hybrid(world, size)); }, ExitCode::Usage,
                   {"[Mesh::hybrid] shard_size " + std::to_string(size) +
                    " does not divide the world of 4 ranks: choose a divisor, as the ranks of one "
                    "host."});
    }
    const auto refused = [](const Mesh& mesh, const ShardOptions& options,
                            const std::string& what) {
      expect_error([&] { fully_shard(make_net(), mesh, options); }, ExitCode::Usage, {what});
    };
    for (const Strategy strategy : {Strategy::HybridShard, Strategy::HybridShardGradOp}) {
      refused(Mesh::shard(world), {.strategy = strategy},
              "[fully_shard] a hybrid strategy needs a 2-D mesh: Mesh::hybrid(world, "
              "ranks_of_a_host).");
    }
    for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp}) {
      refused(Mesh::hybrid(world, 2), {.strategy = strategy},
              "[fully_shard] the mesh has 2 x 2 ranks, and the strategy shards over all of them: "
              "choose HybridShard or HybridShardGradOp, or Mesh::shard(world).");
    }
    for (const int size : {3, -1}) {
      refused(Mesh::shard(world), {.reshard_after_forward_size = size},
              "[fully_shard] reshard_after_forward_size " + std::to_string(size) +
                  " does not divide the shard group of 4 ranks.");
    }
    EXPECT_NO_THROW(fully_shard(make_net(), Mesh::hybrid(world, 2),
                                {.strategy = Strategy::NoShard}));  // of any mesh
  });
}

// Seen before the collective is reached, where it would hang or mix up two units.
TEST(WrongUse, AUnitThatIsShardedAlreadyInsideAnotherModel) {
  auto net = make_net();
  auto block = fully_shard(net->blocks[1], alone());
  expect_error([&] { fully_shard(net, alone()); }, ExitCode::Usage,
               {"[fully_shard] unit 'block1' is sharded already: call fully_shard once, on the "
                "outermost module, and use the handle it returns."});
}

TEST(WrongUse, ADeviceThatIsNotThere) {
  expect_error([] { World::alone(c10::DeviceType::XPU); }, ExitCode::Unavailable,
               {"no device 'xpu' can be used", "GPUs of NVIDIA"});
}

}  // namespace
}  // namespace sherd::test
