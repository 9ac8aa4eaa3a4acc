// Steps of LibTorch's optimizers may follow whatever was done with the model since the backward:
// what they write is seen by the next forward, and never by one that is still under way.

#include <chrono>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/support/meshes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

ShardOptions dtype_options(Strategy strategy, bool bfloat16) {
  ShardOptions options{.strategy = strategy};
  if (bfloat16) {
    options.precision.param_dtype = at::kBFloat16;
  }
  return options;
}

// Calls between(model) between a backward and a step, and expects the next forward to use what the
// step wrote.
template <class Between>
void expect_step_is_seen(const Between& between) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard}) {
    for (const bool bfloat16 : {false, true}) {
      run_ranks(2, [&](World world) {
        const ShardOptions options = dtype_options(strategy, bfloat16);
        auto model = fully_shard(make_net(), mesh_for(world, strategy), options);
        torch::optim::SGD optimizer(optim_parameters(model).values(), 0.5);
        sum_of_errors(model(make_example(world.rank()).x), make_example(world.rank()).y).backward();
        between(model);
        optimizer.step();
        const at::Tensor output = model(make_example(1).x);
        auto fresh = fully_shard(make_net(), mesh_for(world, strategy), options);
        load_full_state_dict(fresh, full_state_dict(model));
        EXPECT_TRUE(at::equal(output, fresh(make_example(1).x)))
            << name_of(strategy) << (bfloat16 ? ", bf16" : ", fp32");
      });
    }
  }
}

TEST(UpdateWindow, AStepAfterAForwardWhoseGraphIsDroppedIsSeen) {
  expect_step_is_seen([](auto& model) { static_cast<void>(model(make_example(3).x)); });
}

TEST(UpdateWindow, AStepAfterALookAtFullParametersIsSeen) {
  expect_step_is_seen([](auto& model) { with_full_parameters(model, "", [] {}); });
}

TEST(UpdateWindow, AStepAfterALookThatFailedIsSeen) {
  expect_step_is_seen([](auto& model) {
    const auto look = [&] {
      with_full_parameters(model, "", [] { throw std::runtime_error("looked too closely"); });
    };
    EXPECT_THROW(look(), std::runtime_error);
  });
}

// The graph of a forward may be kept for ever, as one that a partial backward has left.
TEST(UpdateWindow, AStepAfterAnEvaluationIsSeenWhileAnOlderGraphIsKept) {
  run_ranks(2, [](World world) {
    const ShardOptions options = dtype_options(Strategy::FullShard, /*bfloat16=*/true);
    auto model = fully_shard(make_net(), Mesh::shard(world), options);
    torch::optim::SGD optimizer(optim_parameters(model).values(), 0.5);
    sum_of_errors(model(make_example(world.rank()).x), make_example(world.rank()).y).backward();
    const at::Tensor kept = model(make_example(2).x);
    {
      const at::NoGradGuard no_grad;
      static_cast<void>(model(make_example(3).x));
    }
    optimizer.step();
    const at::Tensor output = model(make_example(1).x);
    auto fresh = fully_shard(make_net(), Mesh::shard(world), options);
    load_full_state_dict(fresh, full_state_dict(model));
    EXPECT_TRUE(at::equal(output, fresh(make_example(1).x)));
  });
}

// The last rank is late in a forward of which nothing is kept: the others' steps must wait for it.
TEST(UpdateWindow, AStepAfterADroppedForwardDoesNotReachAnotherRanksForward) {
  for (const bool bfloat16 : {false, true}) {
    run_ranks(3, [&](World world) {
      auto model =
          fully_shard(make_net(), Mesh::shard(world), dtype_options(Strategy::FullShard, bfloat16));
      torch::optim::SGD optimizer(optim_parameters(model).values(), 0.5);
      const auto forward = [&](bool slowly) {
        return model
            .run(
                [&](NetImpl& net, const at::Tensor& x) {
                  at::Tensor hidden = net.input(x);
                  for (auto& block : net.blocks) {
                    if (slowly && world.rank() == 2) {
                      std::this_thread::sleep_for(std::chrono::milliseconds(20));
                    }
                    hidden = block(hidden);
                  }
                  return net.head(hidden);
                },
                make_example(1).x)
            .detach();
      };
      for (int step = 0; step < 2; ++step) {
        const Example example = make_example(world.rank());
        sum_of_errors(model(example.x), example.y).backward();
        const at::Tensor expected = forward(false);
        EXPECT_TRUE(at::equal(forward(true), expected)) << "rank " << world.rank();
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  }
}

}  // namespace
}  // namespace sherd::test
