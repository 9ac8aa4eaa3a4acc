// Gradients of several micro-batches: reduced each time, within the row only, or not until the
// last; with parameters kept between them. Every way ends in the parameters of the unsharded model.

#include <gtest/gtest.h>

#include "src/step/step.h"
#include "tests/support/expect_error.h"
#include "tests/support/parity.h"

namespace sherd::test {
namespace {

void expect_parity_of_all_strategies(Setting setting) {
  const Trace expected = train_plain({1, 1}, setting);
  for (const Strategy strategy : kStrategies) {
    setting.strategy = strategy;
    for (const Cut& cut : kCuts) {
      if (cut.micro_batches > 1) {
        SCOPED_TRACE(name_of(strategy));
        expect_fp32_parity(expected, cut, setting);
      }
    }
  }
}

TEST(Accumulation, WithoutCommunication) {
  expect_parity_of_all_strategies({.sync_last_only = true});
}

TEST(Accumulation, WithoutCommunicationAndWithClipping) {
  expect_parity_of_all_strategies({.max_norm = 0.1, .sync_last_only = true});
}

TEST(Accumulation, WithinTheRowUntilTheLastMicroBatch) {
  expect_parity_of_all_strategies({.all_reduce_last_only = true});
}

TEST(Accumulation, KeepingParameters) {
  expect_parity_of_all_strategies({.keep_parameters = true});
}

TEST(Accumulation, KeepingParametersWithoutCommunication) {
  expect_parity_of_all_strategies({.sync_last_only = true, .keep_parameters = true});
}

// What bf16 loses when it is added up, an fp32 buffer keeps: 1 + 2^-9 is not a bf16 number.
TEST(Accumulation, WithoutCommunicationAddsInFp32) {
  run_ranks(2, [](World world) {
    torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
    auto model =
        fully_shard(linear, Mesh::shard(world), {.precision = {.param_dtype = at::kBFloat16}});
    model.set_gradient_divide_factor(1.0);
    for (const double x : {1.0, 1.0 / 512}) {
      model.set_requires_gradient_sync(x < 1.0);
      model(at::full({1, 1}, x)).sum().backward();
    }
    const ParameterShard shard = model.parameter_shards().front();
    if (shard.end > shard.begin) {
      EXPECT_EQ(shard.gradient.item<float>(), 2 * (1.0F + 1.0F / 512));
    }
  });
}

// Only some units accumulate; the others are reduced each time. FSDP2: `recurse=False`.
TEST(Accumulation, OfSomeUnits) {
  for (const bool root_only : {true, false}) {
    run_ranks(2, [&](World world) {
      const auto chosen = [&](const std::string& unit) {
        return root_only ? unit == "root" : unit == "block1";
      };
      std::map<std::string, at::Tensor> gradients;
      for (const bool accumulate : {false, true}) {
        auto model = fully_shard(make_net(), Mesh::shard(world));
        for (int micro = 0; micro < 3; ++micro) {
          model.set_requires_gradient_sync(!accumulate || micro == 2, chosen);
          const Example example = make_example(2 * micro + world.rank());
          sum_of_errors(model(example.x), example.y).backward();
        }
        EXPECT_EQ(model.counts().reductions, accumulate ? (root_only ? 3 * 3 + 1 : 3 * 3 + 1) : 12);
        for (const ParameterShard& shard : model.parameter_shards()) {
          if (accumulate) {
            EXPECT_TRUE(at::allclose(gradients.at(shard.name), shard.gradient, 1e-5, 1e-6));
          }
          gradients[shard.name] = shard.gradient.clone();
        }
      }
    });
  }
}

// A unit that the last micro-batch does not use is reduced all the same.
TEST(Accumulation, ReducesWhatOnlyEarlierMicroBatchesUsed) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::HybridShard}) {
    run_ranks(4, [&](World world) {
      auto model = fully_shard(make_net(), mesh_for(world, strategy), {.strategy = strategy});
      const auto forward = [&](bool all) {
        return model.run(
            [all](NetImpl& net, const at::Tensor& x) {
              const at::Tensor hidden = net.blocks[0](net.input(x));
              return net.head(all ? net.blocks[2](net.blocks[1](hidden)) : hidden);
            },
            make_example(world.rank()).x);
      };
      if (strategy == Strategy::FullShard) {
        model.set_requires_gradient_sync(false);
      } else {
        model.set_requires_all_reduce(false);
      }
      forward(true).sum().backward();
      model.set_requires_gradient_sync(true);
      model.set_requires_all_reduce(true);
      forward(false).sum().backward();
      for (const ParameterShard& shard : model.parameter_shards()) {
        EXPECT_TRUE(shard.gradient.defined()) << shard.name;
        if (shard.end > shard.begin) {
          EXPECT_GT(shard.gradient.abs().sum().item<float>(), 0) << shard.name;
        }
      }
    });
  }
}

TEST(Accumulation, StepAndClipRefuseGradientsThatAreNotReduced) {
  const auto refused = [](World world, Strategy strategy) {
    auto model = fully_shard(make_net(), mesh_for(world, strategy), {.strategy = strategy});
    AdamW optimizer(model);
    if (strategy == Strategy::FullShard) {
      model.set_requires_gradient_sync(false);
    } else {
      model.set_requires_all_reduce(false);
    }
    model(make_example(0).x).sum().backward();
    const std::vector<std::string> parts = {
        "gradients of unit 'root' have not been summed over all ranks",
        "set_requires_gradient_sync(true)"};
    expect_error([&] { optimizer.step(); }, ExitCode::Usage, parts);
    expect_error([&] { clip_grad_norm(model, 1.0); }, ExitCode::Usage, parts);
    optimizer.zero_grad();
    model.set_requires_gradient_sync(true);
    model.set_requires_all_reduce(true);
    model(make_example(0).x).sum().backward();
    EXPECT_NO_THROW(optimizer.step());
  };
  run_ranks(2, [&](World world) { refused(world, Strategy::FullShard); });
  run_ranks(4, [&](World world) { refused(world, Strategy::HybridShard); });
}

/// What a step of three micro-batches leaves, and what it cost.
struct OptimizerSharded {
  std::vector<at::Tensor> gradients;
  Communicator::Counts counts;
  detail::StorageState between =
      detail::StorageState::Sharded;  ///< of a block, between micro-batches
};

OptimizerSharded step_of_three(const World& world, Strategy strategy,
                               const std::function<void(ShardedModule&, bool is_last)>& set) {
  auto model = fully_shard(make_net(), mesh_for(world, strategy), {.strategy = strategy});
  AdamW optimizer(model);
  OptimizerSharded found;
  for (int micro = 0; micro < 3; ++micro) {
    set(model, micro == 2);
    const Example example = make_example(3 * world.rank() + micro);
    sum_of_errors(model(example.x), example.y).backward();
    if (micro == 1) {
      found.between = detail::engine_of(model).model.units[1]->storage_state();
    }
  }
  found.counts = model.counts();
  for (const ParameterShard& shard : model.parameter_shards()) {
    found.gradients.push_back(shard.gradient.clone());
  }
  optimizer.step();
  return found;
}

// ZeRO-1: however many micro-batches, each unit is gathered once and reduced once.
TEST(ShardOptimizer, GathersAndReducesOncePerStep) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](World world) {
      const auto by_strategy = [](ShardedModule& model, bool is_last) {
        model.set_is_last_backward(is_last);
      };
      const auto by_settings = [](ShardedModule& model, bool is_last) {
        model.set_requires_gradient_sync(is_last);
        model.set_reshard_after_backward(is_last);
      };
      const OptimizerSharded ours = step_of_three(world, Strategy::ShardOptimizer, by_strategy);
      const OptimizerSharded same = step_of_three(world, Strategy::ShardGradOp, by_settings);
      const auto segments = static_cast<int64_t>(make_net()->blocks.size()) + 1;
      EXPECT_EQ(ours.counts.gathers, world.size() > 1 ? segments : 0);
      EXPECT_EQ(ours.counts.reductions, world.size() > 1 ? segments : 0);
      EXPECT_EQ(ours.counts.bytes_sent, same.counts.bytes_sent);
      EXPECT_EQ(ours.between,
                world.size() > 1 ? detail::StorageState::Unsharded : detail::StorageState::Sharded);
      for (size_t i = 0; i < ours.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(ours.gradients[i], same.gradients[i])) << i;
      }
    });
  }
}

// What follows for other strategies from their placements: nothing.
TEST(ShardOptimizer, IsTheOnlyOneThatTheLastBackwardMattersTo) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      const OptimizerSharded told = step_of_three(
          world, strategy,
          [](ShardedModule& model, bool is_last) { model.set_is_last_backward(is_last); });
      const OptimizerSharded plain = step_of_three(world, strategy, [](ShardedModule&, bool) {});
      EXPECT_EQ(told.counts.gathers, plain.counts.gathers);
      EXPECT_EQ(told.counts.reductions, plain.counts.reductions);
      EXPECT_EQ(told.counts.bytes_sent, plain.counts.bytes_sent);
      for (size_t i = 0; i < told.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(told.gradients[i], plain.gradients[i])) << name_of(strategy);
      }
    });
  }
}

TEST(ShardOptimizer, TrainsAsTheUnshardedModel) {
  const Setting setting{.max_norm = 0.1, .strategy = Strategy::ShardOptimizer};
  const Trace expected = train_plain({1, 1}, setting);
  for (const Cut& cut : kCuts) {
    SCOPED_TRACE(cut.micro_batches);
    expect_fp32_parity(expected, cut, setting);
  }
}

TEST(ShardOptimizer, IsPlannedWithWholeGradients) {
  run_ranks(2, [](World world) {
    const auto planned = [&](Strategy strategy, const MicroBatches& micro_batches) {
      const auto model = fully_shard(make_net(), Mesh::shard(world), {.strategy = strategy});
      return model.planned_peak_bytes(micro_batches);
    };
    for (const int count : {1, 3}) {
      EXPECT_EQ(planned(Strategy::ShardOptimizer, {.count = count}),
                planned(Strategy::ShardGradOp, {.count = count, .requires_gradient_sync = false}));
    }
  });
}

TEST(Placements, OfEachStrategyStayShardedUntilTheUpdate) {
  for (const Strategy strategy :
       {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard, Strategy::HybridShard,
        Strategy::HybridShardGradOp, Strategy::ShardOptimizer}) {
    const Placements row = placements_of(strategy);
    EXPECT_LE(row.parameters_after_forward == Placement::Shard,
              row.parameters_after_backward == Placement::Shard)
        << name_of(strategy);
    EXPECT_LE(row.parameters_after_backward == Placement::Shard, row.optimizer == Placement::Shard)
        << name_of(strategy);
    EXPECT_LE(row.gradients == Placement::Shard, row.optimizer == Placement::Shard)
        << name_of(strategy);
  }
}

}  // namespace
}  // namespace sherd::test
