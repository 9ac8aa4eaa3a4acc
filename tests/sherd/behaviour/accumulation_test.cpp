// Gradients of several micro-batches: reduced each time, within the row only, or not until the
// last; with parameters kept between them. Every way ends in the parameters of the unsharded model.

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sherd::test
