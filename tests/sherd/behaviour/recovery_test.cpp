// Steps that go another way than forward, backward, update: forwards without a backward, exceptions
// that are caught, backwards after one that failed.

#include <stdexcept>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include "sherd/optim.h"
#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/ranks.h"
#include "tests/support/seeded.h"

namespace sherd::test {
namespace {

struct FailsInBackward : torch::autograd::Function<FailsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("failed in backward");
  }
};

std::vector<at::Tensor> gradients(const ShardedModule& model) {
  std::vector<at::Tensor> found;
  for (const ParameterShard& shard : model.parameter_shards()) {
    found.push_back(shard.gradient.clone());
  }
  return found;
}

void expect_equal(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(expected[i], actual[i])) << "parameter " << i;
  }
}

Sharded<StackNet> make_model(const World& world, Strategy strategy) {
  return fully_shard(seeded(3, [] { return StackNet(); }), mesh_for(world, strategy),
                     {.strategy = strategy});
}

std::vector<at::Tensor> plain_gradients(const World& world, Strategy strategy) {
  auto model = make_model(world, strategy);
  model(odd_input(world.rank())).square().sum().backward();
  return gradients(model);
}

TEST(Recovery, AForwardWithoutBackwardChangesNothing) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      auto model = make_model(world, strategy);
      static_cast<void>(model(odd_input(9)));  // its graph is freed here
      const auto before = model.counts();
      model(odd_input(world.rank())).square().sum().backward();
      const auto counts = model.counts();
      EXPECT_EQ(counts.reductions - before.reductions, shard_size_for(4, strategy) == 1 ? 0 : 3);
      expect_equal(plain_gradients(world, strategy), gradients(model));
    });
  }
}

TEST(Recovery, AnExceptionCaughtInsideTheModelLeavesTheCallGoingOn) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp}) {
    run_ranks(2, [&](World world) {
      auto model = make_model(world, strategy);
      const at::Tensor out = model.run(
          [](StackNetImpl& stack, const at::Tensor& x) {
            const at::Tensor y = stack.layers[0](x);
            try {
              stack.layers[1]->run(
                  [](LayerImpl& /*layer*/, const at::Tensor& z) -> at::Tensor {
                    throw std::runtime_error("no " + std::to_string(z.dim()));
                  },
                  y);
            } catch (const std::runtime_error&) {
              // another way round
            }
            return stack.layers[2](stack.layers[1](y));
          },
          odd_input(world.rank()));
      out.square().sum().backward();
      expect_equal(plain_gradients(world, strategy), gradients(model));
    });
  }
}

TEST(Recovery, ABackwardAfterOneThatFailed) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp}) {
    run_ranks(2, [&](World world) {
      auto model = make_model(world, strategy);
      const at::Tensor failing = FailsInBackward::apply(model(odd_input(5))).sum();
      EXPECT_THROW(failing.backward(), std::runtime_error);
      model.zero_grad();
      model(odd_input(world.rank())).square().sum().backward();
      expect_equal(plain_gradients(world, strategy), gradients(model));
    });
  }
}

TEST(Recovery, ABackwardOfAnotherGraphRightAfterOneThatFailed) {
  run_ranks(2, [](World world) {
    auto model = make_model(world, Strategy::FullShard);
    const at::Tensor good = model(odd_input(world.rank())).square().sum();
    const at::Tensor failing =
        model
            .run(
                [](StackNetImpl& stack, const at::Tensor& x) {
                  return stack.layers[2](FailsInBackward::apply(stack.layers[0](x)));
                },
                odd_input(5))
            .sum();
    EXPECT_THROW(failing.backward(), std::runtime_error);
    model.zero_grad();
    good.backward();
    expect_equal(plain_gradients(world, Strategy::FullShard), gradients(model));
  });
}

// Two micro-batches, the first without communication; `fails` in the backward of one of them.
void accumulate(Sharded<StackNet>& model, const World& world, int fails) {
  for (const int micro : {0, 1}) {
    model.set_requires_gradient_sync(micro == 1);
    const at::Tensor out = model.run(
        [&](StackNetImpl& stack, const at::Tensor& x) {
          const at::Tensor y = stack.layers[1](stack.layers[0](x));
          return stack.layers[2](micro == fails ? FailsInBackward::apply(y) : y);
        },
        odd_input(10 * micro + world.rank()));
    out.square().sum().backward();
  }
}

TEST(Recovery, ABackwardThatFailedWhileMicroBatchesAccumulated) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      auto whole = make_model(world, strategy);
      accumulate(whole, world, /*fails=*/-1);
      auto model = make_model(world, strategy);
      for (const int fails : {0, 1}) {
        EXPECT_THROW(accumulate(model, world, fails), std::runtime_error);
        model.zero_grad();
        accumulate(model, world, /*fails=*/-1);
        expect_equal(gradients(whole), gradients(model));
        model.zero_grad();
      }
    });
  }
}

enum class Fails { Never, Recomputation, Backward };

// One step of units whose activations are checkpointed.
void checkpointed_step(Sharded<StackNet>& model, const World& world, Fails fails) {
  const auto calls = std::make_shared<int>(0);
  const auto middle = [calls, fails](LayerImpl& layer, const at::Tensor& x) {
    if (++*calls == 2 && fails == Fails::Recomputation) {
      throw std::runtime_error("failed when computed again");
    }
    const at::Tensor y = layer.forward(x);
    return fails == Fails::Backward ? FailsInBackward::apply(y) : y;
  };
  const at::Tensor out = model.run(
      [&](StackNetImpl& stack, const at::Tensor& x) {
        return stack.layers[2](stack.layers[1]->run(middle, stack.layers[0](x)));
      },
      odd_input(world.rank()));
  out.square().sum().backward();
  EXPECT_EQ(*calls, 2);
}

TEST(Recovery, AfterAFailureInACheckpointedUnit) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(2, [&](World world) {
      const ShardOptions options{
          .strategy = strategy, .units = unit_policy::every_unit({.checkpoint_activations = true})};
      auto model =
          fully_shard(seeded(3, [] { return StackNet(); }), mesh_for(world, strategy), options);
      for (const Fails fails : {Fails::Recomputation, Fails::Backward}) {
        EXPECT_THROW(checkpointed_step(model, world, fails), std::runtime_error);
        model.zero_grad();
        checkpointed_step(model, world, Fails::Never);
        expect_equal(plain_gradients(world, strategy), gradients(model));
        model.zero_grad();
      }
    });
  }
}

// What it gives up is counted once: afterwards a forward is known to be one.
TEST(Recovery, ABackwardThatFailsInsideAForward) {
  run_ranks(2, [](World world) {
    auto model = make_model(world, Strategy::FullShard);
    model.run(
        [](StackNetImpl& stack, const at::Tensor& x) {
          const at::Tensor failing =
              stack.layers[1](FailsInBackward::apply(stack.layers[0](x))).sum();
          EXPECT_THROW(failing.backward(), std::runtime_error);
          return stack.layers[2](x);
        },
        odd_input(5));
    model.run(
        [&](StackNetImpl& /*stack*/, const at::Tensor& x) {
          expect_error([&] { static_cast<void>(optim_parameters(model)); }, ExitCode::Usage,
                       {"inside the forward of unit 'root'"});
          return x;
        },
        odd_input(5));
    model(odd_input(world.rank())).square().sum().backward();
    expect_equal(plain_gradients(world, Strategy::FullShard), gradients(model));
  });
}

TEST(Recovery, TwoForwardsThenTheirBackwardsOneByOne) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      auto one = make_model(world, strategy);
      for (const int64_t number : {0, 10}) {
        one(odd_input(number + world.rank())).square().sum().backward();
      }
      auto two = make_model(world, strategy);
      const at::Tensor first = two(odd_input(world.rank())).square().sum();
      const at::Tensor second = two(odd_input(10 + world.rank())).square().sum();
      first.backward();
      second.backward();
      const auto expected = gradients(one);
      const auto actual = gradients(two);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(expected[i], actual[i], 1e-5, 1e-6))
            << name_of(strategy) << ", parameter " << i;
      }
    });
  }
}

}  // namespace
}  // namespace sherd::test
