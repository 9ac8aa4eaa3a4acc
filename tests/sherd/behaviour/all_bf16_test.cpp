// Masters and sums of gradients in bf16: down to eight bytes a parameter.

#include <gtest/gtest.h>

#include "sherd/checkpoint.h"
#include "tests/support/bytes_per_element.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/train_small_net.h"

namespace sherd::test {
namespace {

ShardOptions options_of(Master master, c10::ScalarType reduce_dtype = at::kFloat,
                        Strategy strategy = Strategy::FullShard) {
  return {
      .strategy = strategy,
      .precision = {.param_dtype = at::kBFloat16, .master = master, .reduce_dtype = reduce_dtype}};
}

TEST(AllBf16, MastersTrainToTheSameBitsOnAnyWorld) {
  SmallOutcome one;
  run_ranks(1, [&](World world) {
    one = train_small_net(world, {.micro_batches = 4, .options = options_of(Master::BFloat16)});
    const SmallOutcome again =
        train_small_net(world, {.micro_batches = 4, .options = options_of(Master::BFloat16)});
    check_equal_bits(one, again);
  });
  for (const int ranks : {2, 4}) {
    for (const Strategy strategy : kStrategies) {
      run_ranks(ranks, [&](World world) {
        const SmallRun run{.micro_batches = 4 / ranks,
                           .options = options_of(Master::BFloat16, at::kFloat, strategy)};
        check_equal_bits(one, train_small_net(world, run));
      });
    }
  }
}

// Losses fall as those of fp32 masters do.
TEST(AllBf16, TrainsLikeFp32Masters) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(2, [&](World world) {
      const auto losses = [&](Master master, c10::ScalarType reduce_dtype) {
        const SmallRun run{
            .micro_batches = 2, .options = options_of(master, reduce_dtype, strategy), .steps = 20};
        return train_small_net(world, run).losses;
      };
      const auto expected = losses(Master::Float32, at::kFloat);
      const auto found = losses(Master::BFloat16, at::kBFloat16);
      double difference = 0;
      double sum = 0;
      for (const auto& [index, loss] : expected) {
        difference += std::abs(loss - found.at(index));
        sum += loss;
      }
      EXPECT_LT(difference, 0.05 * sum) << name_of(strategy);
      EXPECT_GT(difference, 0) << name_of(strategy);
    });
  }
}

// What travels, its master, two moments and the sum of its gradient: 8 to 18 bytes.
TEST(MemoryModes, TakeTheBytesOfTheirParts) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](World world) {
      for (const auto& [master, master_bytes] :
           {std::pair(Master::Float32, 4), {Master::Split, 2}, {Master::BFloat16, 0}}) {
        for (const auto& [moments, moment_bytes] : {std::pair(at::kFloat, 4), {at::kBFloat16, 2}}) {
          for (const auto& [sums, sum_bytes] : {std::pair(at::kFloat, 4), {at::kBFloat16, 2}}) {
            EXPECT_EQ(bytes_per_element(world, options_of(master, sums), moments),
                      2 + master_bytes + 2 * moment_bytes + sum_bytes)
                << name_of(master) << ", moments " << moments << ", sums " << sums;
          }
        }
      }
    });
  }
}

// The most that is planned is what is measured, or a little more.
TEST(AllBf16, PlansItsPeak) {
  for (const int ranks : {1, 2, 4}) {
    for (const Strategy strategy : kStrategies) {
      run_ranks(ranks, [&](World world) {
        auto model = fully_shard(make_net(), mesh_for(world, strategy),
                                 options_of(Master::BFloat16, at::kBFloat16, strategy));
        AdamW optimizer(model);
        for (int step = 0; step < 3; ++step) {
          model(make_example(step).x).sum().backward();
          model(make_example(step + 1).x).sum().backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        EXPECT_LE(model.memory().peak_bytes(), model.planned_peak_bytes({.count = 2}))
            << name_of(strategy) << ", " << ranks;
      });
    }
  }
}

// Sums are fp32 on their way: rounded once, whatever the number of ranks.
TEST(AllBf16, GradientsAreFp32SumsRounded) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp}) {
    run_ranks(3, [&](World world) {
      const auto gradients = [&](c10::ScalarType reduce_dtype) {
        auto model = fully_shard(make_net(), Mesh::shard(world),
                                 options_of(Master::Float32, reduce_dtype, strategy));
        model(make_example(world.rank()).x).sum().backward();
        const auto norm = clip_grad_norm(model, 1e6).item<double>();
        std::vector<at::Tensor> all;
        double squares = 0;
        for (const ParameterShard& shard : model.parameter_shards()) {
          EXPECT_EQ(shard.gradient.scalar_type(), reduce_dtype);
          all.push_back(shard.gradient.clone());
          squares += shard.gradient.to(at::kDouble).square().sum().item<double>();
        }
        double total[] = {squares};
        model.world().all_reduce(total, ReduceOp::Sum);
        EXPECT_NEAR(norm, std::sqrt(total[0]), 1e-5 * norm);
        return all;
      };
      const auto wide = gradients(at::kFloat);
      const auto narrow = gradients(at::kBFloat16);
      for (size_t i = 0; i < wide.size(); ++i) {
        EXPECT_TRUE(at::equal(wide[i].to(at::kBFloat16), narrow[i])) << i;
      }
    });
  }
}

// Values go from one form to the other, rounded to nearest where there is less room.
TEST(AllBf16, CheckpointsGoToFp32MastersAndBack) {
  const TempFolder folder;
  for (const Master saved : {Master::Float32, Master::Split, Master::BFloat16}) {
    const std::string path = (folder.path() / name_of(saved)).string();
    run_ranks(2, [&](World world) {
      auto model = fully_shard(make_net(), Mesh::shard(world), options_of(saved));
      AdamW optimizer(model, {.lr = 1e-2});
      model(make_example(0).x).sum().backward();
      optimizer.step();
      save_checkpoint(model, optimizer, path, "");
      for (const Master loaded : {Master::Float32, Master::Split, Master::BFloat16}) {
        auto other = fully_shard(make_net(), Mesh::shard(world), options_of(loaded));
        AdamW its(other, {.lr = 1e-2});
        load_checkpoint(other, its, path);
        const auto expected = model.parameter_shards();
        const auto found = other.parameter_shards();
        for (size_t i = 0; i < expected.size(); ++i) {
          const auto dtype = loaded == Master::BFloat16 ? at::kBFloat16 : at::kFloat;
          EXPECT_TRUE(at::equal(expected[i].value.to(dtype), found[i].value))
              << name_of(saved) << ", " << name_of(loaded);
        }
        for (size_t i = 0; i < optimizer.moments().size(); ++i) {
          EXPECT_TRUE(at::equal(optimizer.moments()[i].exp_avg, its.moments()[i].exp_avg));
        }
      }
    });
  }
}

TEST(AllBf16, RefusesWhatNeedsFp32) {
  const Mesh mesh = Mesh::shard(World::alone());
  auto masters = fully_shard(make_net(), mesh, options_of(Master::BFloat16));
  expect_error([&] { static_cast<void>(optim_parameters(masters)); }, ExitCode::Usage,
               {"[optim_parameters] unit '", "masters in the format BFloat16",
                "use sherd::AdamW, or Master::Float32"});
  auto gradients = fully_shard(make_net(), mesh, options_of(Master::Float32, at::kBFloat16));
  expect_error([&] { static_cast<void>(optim_parameters(gradients)); }, ExitCode::Usage,
               {"gradients in BFloat16", "use sherd::AdamW, or reduce_dtype Float."});
  ShardOptions options = options_of(Master::BFloat16);
  options.precision.full_precision_in_eval = true;
  expect_error([&] { fully_shard(make_net(), mesh, options); }, ExitCode::Usage,
               {"[fully_shard] Master::BFloat16", "leave full_precision_in_eval"});
}

}  // namespace
}  // namespace sherd::test
