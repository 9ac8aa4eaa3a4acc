// Gradients of replicated models are the caller's to change, as those of sharded ones are: what is
// written to them is what the next backward adds to.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/meshes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

using Gradients = std::vector<at::Tensor>;

Sharded<Net> replicated_net(const World& world, Strategy strategy) {
  return fully_shard(make_net(), mesh_for(world, strategy), {.strategy = strategy});
}

void run_backward(Sharded<Net>& model, int64_t number) {
  const Example example = make_example(number * 10 + model.world().rank());
  sum_of_errors(model(example.x), example.y).backward();
}

Gradients gradients_now(const ShardedModule& model) {
  Gradients found;
  for (const ParameterShard& shard : model.parameter_shards()) {
    found.push_back(shard.gradient.clone());
  }
  return found;
}

// Of one backward alone.
Gradients gradients_of(const World& world, Strategy strategy, int64_t number) {
  auto model = replicated_net(world, strategy);
  run_backward(model, number);
  return gradients_now(model);
}

void expect_close(const Gradients& expected, const Gradients& actual, const std::string& where) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(expected[i], actual[i], 1e-4, 1e-5)) << where << ", parameter " << i;
  }
}

// Calls `test(world, strategy)` on each mesh of two and four ranks.
template <class Test>
void on_each_mesh(const Test& test) {
  for (const int ranks : {2, 4}) {
    for (const Strategy strategy : kStrategies) {
      run_ranks(ranks, [&](World world) { test(std::move(world), strategy); });
    }
  }
}

TEST(ReplicaGradients, ZeroedInPlaceAreBegunAnew) {
  on_each_mesh([](const World& world, Strategy strategy) {
    auto model = replicated_net(world, strategy);
    const auto views = optim_parameters(model).values();
    run_backward(model, 1);
    for (const at::Tensor& view : views) {
      view.mutable_grad().zero_();  // as torch::optim's zero_grad(false)
    }
    run_backward(model, 2);
    expect_close(gradients_of(world, strategy, 2), gradients_now(model), name_of(strategy));
  });
}

TEST(ReplicaGradients, WrittenThroughAShardAreAddedTo) {
  on_each_mesh([](const World& world, Strategy strategy) {
    auto model = replicated_net(world, strategy);
    run_backward(model, 1);
    for (const ParameterShard& shard : model.parameter_shards()) {
      shard.gradient.mul_(0.25);
    }
    run_backward(model, 2);
    Gradients expected = gradients_of(world, strategy, 1);
    const Gradients second = gradients_of(world, strategy, 2);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = expected[i] * 0.25 + second[i];
    }
    expect_close(expected, gradients_now(model), name_of(strategy));
  });
}

TEST(ReplicaGradients, ResetOrReplacedForSomeParametersAreTakenAsTheyAre) {
  on_each_mesh([](const World& world, Strategy strategy) {
    auto model = replicated_net(world, strategy);
    const auto views = optim_parameters(model).values();
    run_backward(model, 1);
    const Gradients first = gradients_now(model);
    for (size_t i = 0; i < views.size(); ++i) {
      if (i % 3 == 0) {
        views[i].mutable_grad().reset();
      } else if (i % 3 == 1) {
        views[i].mutable_grad() = views[i].grad() * 3;
      }
    }
    run_backward(model, 2);
    Gradients expected = gradients_of(world, strategy, 2);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = expected[i] + first[i] * (i % 3 == 0 ? 0.0 : i % 3 == 1 ? 3.0 : 1.0);
    }
    expect_close(expected, gradients_now(model), name_of(strategy));
  });
}

// Clipping scales what is shown, and what is added to.
TEST(ReplicaGradients, ClippedBetweenMicroBatchesAreAddedTo) {
  on_each_mesh([](const World& world, Strategy strategy) {
    auto model = replicated_net(world, strategy);
    run_backward(model, 1);
    const auto norm = clip_grad_norm(model, 0.5).item<double>();
    run_backward(model, 2);
    Gradients expected = gradients_of(world, strategy, 1);
    const Gradients second = gradients_of(world, strategy, 2);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = expected[i] * (0.5 / (norm + 1e-6)) + second[i];
    }
    expect_close(expected, gradients_now(model), name_of(strategy));
  });
}

}  // namespace
}  // namespace sherd::test
