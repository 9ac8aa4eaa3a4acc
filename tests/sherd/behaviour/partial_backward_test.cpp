// Backwards that do not go to the parameters, or not to the end: torch::autograd::grad towards
// inputs, inside a forward, over a kept graph, and of uses of one unit side by side.

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adamw.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/expect_error.h"
#include "tests/support/meshes.h"
#include "tests/support/odd_nets.h"
#include "tests/support/ranks.h"

namespace sherd::test {
namespace {

ShardOptions stack_options(Strategy strategy, bool checkpointed = false) {
  return {.strategy = strategy,
          .units = unit_policy::every_unit({.checkpoint_activations = checkpointed})};
}

at::Tensor gradient_of_input(const at::Tensor& output, const at::Tensor& input, bool keep = false) {
  return torch::autograd::grad({loss_of(output)}, {input}, {}, keep).at(0);
}

TEST(PartialBackward, TowardsInputsLeavesParametersAlone) {
  for (const bool checkpointed : {false, true}) {
    for (const Strategy strategy : kStrategies) {
      run_ranks(4, [&](World world) {
        StackNet plain = builder<StackNet>()();
        auto model = fully_shard(builder<StackNet>()(), mesh_for(world, strategy),
                                 stack_options(strategy, checkpointed));
        AdamW optimizer(model, {.lr = 1e-2, .weight_decay = 0.5});
        const at::Tensor input = odd_input(world.rank()).set_requires_grad(true);
        const auto reductions = model.counts().reductions;
        const at::Tensor expected = gradient_of_input(plain(input), input);
        EXPECT_TRUE(at::allclose(gradient_of_input(model(input), input), expected, 1e-4, 1e-6));
        EXPECT_EQ(model.counts().reductions, reductions);
        for (const ParameterShard& shard : model.parameter_shards()) {
          EXPECT_FALSE(shard.gradient.defined()) << name_of(strategy) << ", " << shard.name;
        }
        expect_error([&] { optimizer.step(); }, ExitCode::Usage, {"no parameter has a gradient"});
      });
    }
  }
}

TEST(PartialBackward, TowardsInputsIsFollowedByTheWholeOne) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      const auto gradients = [&](bool input_first) {
        auto model =
            fully_shard(builder<StackNet>()(), mesh_for(world, strategy), stack_options(strategy));
        const at::Tensor input = odd_input(world.rank()).set_requires_grad(true);
        const at::Tensor output = model(input);
        if (input_first) {
          static_cast<void>(gradient_of_input(output, input, /*keep=*/true));
        }
        loss_of(output).backward();
        std::vector<at::Tensor> found;
        for (const ParameterShard& shard : model.parameter_shards()) {
          found.push_back(shard.gradient.clone());
        }
        return found;
      };
      const auto expected = gradients(false);
      const auto actual = gradients(true);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(expected[i], actual[i])) << name_of(strategy) << ", parameter " << i;
      }
    });
  }
}

// A unit's forward that asks for a gradient of a unit inside it goes on with its own parameters.
TEST(PartialBackward, InsideAForwardLeavesTheEnclosingUnitGathered) {
  const auto forward = [](OuterImpl& outer, const at::Tensor& x) {
    const at::Tensor y = at::tanh(outer.before(x)).detach().set_requires_grad(true);
    const at::Tensor slope = gradient_of_input(outer.inner(y), y);
    return outer.after(outer.other(y + slope));
  };
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      NestedNet plain = builder<NestedNet>()();
      const at::Tensor x = odd_input(world.rank());
      const at::Tensor expected = forward(*plain->a, x);
      auto net = builder<NestedNet>()();
      auto model = fully_shard(net, mesh_for(world, strategy), {.strategy = strategy});
      const bool with_views = world.size() > 2;
      if (with_views) {
        static_cast<void>(optim_parameters(model));
      }
      for (int step = 0; step < 2; ++step) {
        const at::Tensor output =
            model.run([&](NestedNetImpl& nested,
                          const at::Tensor& input) { return nested.a->run(forward, input); },
                      x);
        EXPECT_TRUE(at::allclose(output, expected, 1e-4, 1e-6)) << name_of(strategy);
        loss_of(output).backward();
        model.zero_grad();
      }
    });
  }
}

/// Uses one unit twice, side by side.
struct TwinNetImpl : torch::nn::Module {
  TwinNetImpl()
      : first(register_module("first", Unit<Layer>())),
        shared(register_module("shared", Unit<Layer>())) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = first(x);
    return shared(y * 2) + shared(y * 3);
  }
  Unit<Layer> first;
  Unit<Layer> shared;
};
TORCH_MODULE(TwinNet);

// Gradients after `backwards(losses of two forwards)`, unsharded, of all ranks.
template <class Backwards>
void expect_equal_to_plain(const Backwards& backwards) {
  const auto losses = [](auto& model, int64_t rank) {
    return std::vector{loss_of(model(odd_input(rank))), loss_of(model(odd_input(10 + rank)))};
  };
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      TwinNet plain = builder<TwinNet>()();
      for (int64_t rank = 0; rank < world.size(); ++rank) {
        backwards(losses(plain, rank));
      }
      auto model =
          fully_shard(builder<TwinNet>()(), mesh_for(world, strategy), {.strategy = strategy});
      model.set_gradient_divide_factor(1.0);
      backwards(losses(model, world.rank()));
      const auto expected = plain->named_parameters();
      for (const ParameterShard& shard : model.parameter_shards()) {
        const at::Tensor whole = expected[shard.name].grad().reshape({-1});
        EXPECT_TRUE(at::allclose(whole.narrow(0, shard.begin, shard.end - shard.begin),
                                 shard.gradient, 1e-4, 1e-4))
            << name_of(strategy) << ", " << shard.name;
      }
    });
  }
}

TEST(PartialBackward, OfEachOfTwoForwardsThatUseAUnitTwice) {
  expect_equal_to_plain([](const std::vector<at::Tensor>& losses) {
    losses[0].backward();
    losses[1].backward();
  });
}

TEST(PartialBackward, OfAKeptGraphThatUsesAUnitTwice) {
  expect_equal_to_plain([](const std::vector<at::Tensor>& losses) {
    losses[0].backward({}, /*retain_graph=*/true);
    losses[0].backward();
    losses[1].backward();
  });
}

TEST(PartialBackward, WithCreateGraphIsRefused) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(builder<StackNet>()(), Mesh::shard(world));
    const at::Tensor input = odd_input(world.rank()).set_requires_grad(true);
    expect_error([&] { torch::autograd::grad({loss_of(model(input))}, {input}, {}, true, true); },
                 ExitCode::Usage,
                 {"[backward] unit 'layer2' was to run backward with create_graph",
                  "leave create_graph off"});
    loss_of(model(input)).backward();
    EXPECT_TRUE(model.parameter_shards().front().gradient.defined());
  });
}

}  // namespace
}  // namespace sherd::test
