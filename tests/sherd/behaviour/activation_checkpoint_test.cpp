// A unit whose activations are computed again in backward equals one that keeps them, bit by bit,
// dropout included.

#include <map>
#include <string>

#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/meshes.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/train_small_net.h"

namespace sherd::test {
namespace {

UnitPolicy checkpointed() {
  return unit_policy::every_unit({.checkpoint_activations = true});
}

// Throws where a model trains to other bits than without checkpointing.
void check_recomputed_bits(const World& world, const ShardOptions& options) {
  SmallRun run{2, options};
  const SmallOutcome expected = train_small_net(world, run);
  run.options.units = checkpointed();
  const SmallOutcome actual = train_small_net(world, run);
  for (const auto& [name, shard] : actual.shards) {
    TORCH_CHECK(at::equal(expected.shards.at(name).value, shard.value), name, " differs");
  }
}

TEST(ActivationCheckpoint, ChangesNoBit) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Strategy strategy : kStrategies) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const ShardOptions options{.strategy = strategy, .precision = {.param_dtype = dtype}};
        EXPECT_NO_THROW(
            run_ranks(ranks, [&](World world) { check_recomputed_bits(world, options); }))
            << ranks << " ranks, " << name_of(strategy);
      }
    }
  }
}

TEST(ActivationCheckpoint, ChangesNoBitAtAnyPrefetchDepth) {
  for (const int depth : {0, 2, 3}) {
    for (const auto prefetch : {BackwardPrefetch::Pre, BackwardPrefetch::Post}) {
      const ShardOptions options{.prefetch_depth = depth, .backward_prefetch = prefetch};
      EXPECT_NO_THROW(run_ranks(3, [&](World world) { check_recomputed_bits(world, options); }))
          << "depth " << depth;
    }
  }
}

/// Dropout between two layers, inside a unit.
struct DropBlockImpl : torch::nn::Module {
  DropBlockImpl()
      : a(register_module("a", torch::nn::Linear(kOdd, kOdd))),
        b(register_module("b", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) { return b(at::dropout(at::tanh(a(x)), 0.5, true)) + x; }
  torch::nn::Linear a;
  torch::nn::Linear b;
};
TORCH_MODULE(DropBlock);
struct DropNetImpl : torch::nn::Module {
  DropNetImpl()
      : first(register_module("first", Unit<DropBlock>())),
        second(register_module("second", Unit<DropBlock>())) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  Unit<DropBlock> first;
  Unit<DropBlock> second;
};
TORCH_MODULE(DropNet);

std::vector<at::Tensor> gradients_with_dropout(World world, const UnitPolicy& policy) {
  auto net = seeded(5, [] { return DropNet(); });
  auto model = fully_shard(net, Mesh::shard(world), {.units = policy});
  torch::manual_seed(11 + world.rank());
  model(odd_input(world.rank())).square().sum().backward();
  std::vector<at::Tensor> gradients = {at::rand({1})};  // the generator goes on as if nothing was
  for (const ParameterShard& shard : model.parameter_shards()) {
    gradients.push_back(shard.gradient.clone());
  }
  return gradients;
}

struct NormBlockImpl : torch::nn::Module {
  NormBlockImpl()
      : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))),
        norm(register_module("norm", torch::nn::BatchNorm1d(kOdd))) {}
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(NormBlock);
struct NormNetImpl : torch::nn::Module {
  NormNetImpl() : block(register_module("block", Unit<NormBlock>())) {}
  at::Tensor forward(const at::Tensor& x) { return block(x); }
  Unit<NormBlock> block;
};
TORCH_MODULE(NormNet);

// Its kernel writes running statistics without counting a version of them.
TEST(ActivationCheckpoint, ChangesRunningStatisticsOfABatchNormOnce) {
  run_ranks(2, [](World world) {
    std::map<std::string, at::Tensor> kept;
    for (const bool again : {false, true}) {
      auto net = seeded(5, [] { return NormNet(); });
      auto model =
          fully_shard(net, Mesh::shard(world), {.units = again ? checkpointed() : UnitPolicy()});
      for (int step = 0; step < 2; ++step) {
        model(odd_input(step)).square().sum().backward();
      }
      for (const auto& buffer : net->named_buffers()) {
        const auto [found, is_new] = kept.emplace(buffer.key(), buffer.value().clone());
        EXPECT_TRUE(is_new || at::equal(found->second, buffer.value())) << buffer.key();
      }
      EXPECT_FALSE(at::equal(kept.at("block.norm.running_mean"), at::zeros({kOdd})));
    }
  });
}

// Processes: a generator of its own for each rank.
TEST(ActivationCheckpoint, DropsTheSameElementsAgain) {
  const auto statuses = run_processes(2, [](World world) {
    const auto kept = gradients_with_dropout(world, {});
    const auto again = gradients_with_dropout(world, checkpointed());
    for (size_t i = 0; i < kept.size(); ++i) {
      TORCH_CHECK(at::equal(kept[i], again[i]), "tensor ", i, " differs");
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(ActivationCheckpoint, CostsNoGatherMore) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world), {.units = checkpointed()});
    for (int step = 0; step < 3; ++step) {
      const auto before = model.counts();
      model(make_example(step).x).sum().backward();
      EXPECT_EQ(model.counts().gathers - before.gathers, 2 * 3 + 1);
      EXPECT_EQ(model.counts().reductions - before.reductions, 3 + 1);
    }
  });
}

// They are neither computed nor gathered again, and not gathered ahead either.
TEST(ActivationCheckpoint, OfFrozenUnitsBelowTheTrainedOnesHasNoBackward) {
  run_ranks(2, [](World world) {
    for (const bool again : {false, true}) {
      Net net = make_net();
      for (const auto& item : net->named_parameters()) {
        item.value().requires_grad_(item.key().starts_with("block2.") || item.key() == "head.bias");
      }
      auto model =
          fully_shard(net, Mesh::shard(world), {.units = again ? checkpointed() : UnitPolicy()});
      for (int step = 0; step < 3; ++step) {
        const auto before = model.counts();
        model(make_example(step).x).sum().backward();
        constexpr int kRootSegments = 2, kFrozenBlocks = 2;
        EXPECT_EQ(model.counts().gathers - before.gathers, kRootSegments + kFrozenBlocks + 2);
        EXPECT_EQ(model.counts().reductions - before.reductions, 1 + 1);
      }
    }
  });
}

template <class Build, class Input>
void expect_same_gradients(const Build& build, const Input& input, int64_t* gathers = nullptr) {
  run_ranks(2, [&](World world) {
    std::vector<at::Tensor> kept;
    for (const bool again : {false, true}) {
      auto model = fully_shard(seeded(5, build), Mesh::shard(world),
                               {.units = again ? checkpointed() : UnitPolicy()});
      model(input(world.rank())).square().sum().backward();
      if (again && gathers != nullptr) {
        *gathers = model.counts().gathers;
      }
      size_t i = 0;
      for (const ParameterShard& shard : model.parameter_shards()) {
        if (again) {
          EXPECT_TRUE(at::equal(kept[i++], shard.gradient)) << shard.name;
        } else {
          kept.push_back(shard.gradient.clone());
        }
      }
    }
  });
}

// Its inputs are indices: nothing that requires gradients goes in.
TEST(ActivationCheckpoint, OfAnEmbedding) {
  expect_same_gradients([] { return SequentialNet(); },
                        [](int rank) {
                          return at::tensor({1, 5, rank});
                        });
}

TEST(ActivationCheckpoint, OfAFrozenEmbedding) {
  expect_same_gradients(
      [] {
        SequentialNet net;
        return net;
      },
      [](int rank) {
        return at::tensor({1, 5, rank});
      });
  run_ranks(2, [](World world) {
    auto net = seeded(5, [] { return SequentialNet(); });
    net->table->weight.set_requires_grad(false);
    auto model = fully_shard(net, Mesh::shard(world), {.units = checkpointed()});
    model(at::tensor({1, 5})).square().sum().backward();
    for (const ParameterShard& shard : model.parameter_shards()) {
      EXPECT_EQ(shard.gradient.defined(), shard.name != "table.weight") << shard.name;
    }
  });
}

// A checkpointed unit inside a checkpointed unit is gathered once more, for the recomputation.
TEST(ActivationCheckpoint, OfNestedUnits) {
  int64_t gathers = 0;
  expect_same_gradients([] { return NestedNet(); }, [](int rank) { return odd_input(rank); },
                        &gathers);
  constexpr int64_t kOuter = 2;
  constexpr int64_t kInner = 4;
  EXPECT_LE(gathers, 1 + 2 * kOuter + 3 * kInner);
}

TEST(ActivationCheckpoint, OfNestedUnitsInTwoForwards) {
  expect_equals_plain(builder<NestedNet>(),
                      [](auto& model, auto&, const Place& place) {
                        const at::Tensor a = model(input_of(place));
                        const at::Tensor b = model(input_of(Place{place.step + 50, place.rank}));
                        return a.square().sum() + (a * b).sum();
                      },
                      {.units = checkpointed()});
}

TEST(ActivationCheckpoint, OfSeveralInputsAndOutputs) {
  expect_same_gradients([] { return ManyNet(); }, [](int rank) { return odd_input(rank); });
}

TEST(ActivationCheckpoint, OfAUnitUsedTwice) {
  expect_same_gradients([] { return SharedModulesNet(); },
                        [](int rank) { return odd_input(rank); });
}

TEST(ActivationCheckpoint, RefusesArgumentsThatCannotBeCopied) {
  auto model = fully_shard(StackNet(), Mesh::shard(World::alone()), {.units = checkpointed()});
  expect_error(
      [&] {
        model.run(
            [](StackNetImpl& stack, const at::Tensor& x) {
              return stack.layers[0]->run(
                  [](LayerImpl& layer, const at::Tensor& y, std::unique_ptr<int> factor) {
                    return layer.forward(y) * *factor;
                  },
                  x, std::make_unique<int>(2));
            },
            odd_input(0));
      },
      ExitCode::Usage,
      {"[forward] the activations of unit 'layer0' cannot be checkpointed",
       "Pass it by value or pointer"});
}

}  // namespace
}  // namespace sherd::test
