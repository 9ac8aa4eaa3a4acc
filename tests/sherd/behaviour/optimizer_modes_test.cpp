// The optimizer in backward, with bf16 moments, and behind a gradient scaler.

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "src/kernels/kernels.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/ranks.h"
#include "tests/support/train_small_net.h"

namespace sherd::test {
namespace {

std::map<std::string, at::Tensor> train(World world, const ShardOptions& options,
                                        const AdamWMode& mode, int steps = 4) {
  auto model = fully_shard(make_net(), mesh_for(world, options.strategy), options);
  AdamW optimizer(model, {.lr = 1e-2}, {}, mode);
  for (int step = 0; step < steps; ++step) {
    const Example example = make_example(step * world.size() + world.rank());
    sum_of_errors(model(example.x), example.y).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  std::map<std::string, at::Tensor> values;
  for (const ParameterShard& shard : model.parameter_shards()) {
    values[shard.name] = shard.value.clone();
  }
  return values;
}

TEST(OptimizerInBackward, ChangesNoBit) {
  for (const int ranks : {1, 2, 4}) {
    for (const Strategy strategy : kStrategies) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        run_ranks(ranks, [&](World world) {
          const ShardOptions options{.strategy = strategy, .precision = {.param_dtype = dtype}};
          const auto after = train(world, options, {});
          const auto within = train(world, options, {.in_backward = true});
          for (const auto& [name, value] : after) {
            EXPECT_TRUE(at::equal(value, within.at(name))) << name_of(strategy) << ", " << name;
          }
        });
      }
    }
  }
}

TEST(OptimizerInBackward, HoldsTheGradientsOfAFewUnits) {
  run_ranks(2, [](World world) {
    std::map<bool, int64_t> bytes;
    for (const bool in_backward : {false, true}) {
      auto model = fully_shard(make_net(12), Mesh::shard(world));
      AdamW optimizer(model, {}, {}, {.in_backward = in_backward});
      for (int step = 0; step < 3; ++step) {
        model(make_example(step).x).sum().backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      bytes[in_backward] = model.memory().bytes(MemoryKind::GradientShard);
    }
    EXPECT_LT(bytes[true], bytes[false] / 2);
  });
}

TEST(OptimizerInBackward, RefusesWhatNeedsAllGradientsFirst) {
  auto model = fully_shard(make_net(), Mesh::shard(World::alone()));
  AdamW optimizer(model, {}, {}, {.in_backward = true});
  const auto backward = [&] { model(make_example(0).x).sum().backward(); };
  backward();
  expect_error([&] { clip_grad_norm(model, 1.0); }, ExitCode::Usage,
               {"[clip_grad_norm]: the optimizer works in backward", "without in_backward"});
  GradScaler scaler(model);
  expect_error([&] { scaler.unscale(); }, ExitCode::Usage,
               {"[GradScaler::unscale]: the optimizer works in backward"});
  expect_error(backward, ExitCode::Usage,
               {"has been updated in this step already", "call AdamW::step() after each backward"});
  optimizer.step();
  model.set_requires_gradient_sync(false);
  expect_error(backward, ExitCode::Usage,
               {"accumulates gradients or keeps its parameters", "without in_backward"});
  expect_error([&] { AdamW second(model, {}, {}, {.in_backward = true}); }, ExitCode::Usage,
               {"[AdamW] a second optimizer"});
}

TEST(OptimizerInBackward, RefusesTwoCallsOfACheckpointedUnitThatHoldsOthers) {
  auto model = fully_shard(NestedNet(), Mesh::shard(World::alone()),
                           {.units = unit_policy::every_unit({.checkpoint_activations = true})});
  AdamW optimizer(model, {}, {}, {.in_backward = true});
  const auto step = [&](int calls) {
    at::Tensor loss = at::zeros({});
    for (int call = 0; call < calls; ++call) {
      loss = loss + model(odd_input(call)).square().sum();
    }
    loss.backward();
    optimizer.step();
  };
  step(1);
  const at::Tensor before = model.parameter_shards().front().value.clone();
  expect_error([&] { step(2); }, ExitCode::Usage,
               {"[backward] unit 'a' was called 2 times", "checkpoint the inner units only"});
  EXPECT_TRUE(at::equal(before, model.parameter_shards().front().value));
  step(1);
}

TEST(MomentsInBf16, TakeHalfTheMemoryAndAreTheSameOnAnyWorld) {
  const ShardOptions options;
  const auto one = [&] {
    auto model = fully_shard(make_net(), Mesh::shard(World::alone()));
    const AdamW wide(model);
    const int64_t bytes = model.memory().bytes(MemoryKind::OptimizerState);
    auto other = fully_shard(make_net(), Mesh::shard(World::alone()));
    const AdamW narrow(other, {}, {}, {.moments_dtype = at::kBFloat16});
    EXPECT_EQ(2 * other.memory().bytes(MemoryKind::OptimizerState), bytes);
  };
  one();
  // One step from equal gradients: noise depends on parameter, element and step alone.
  std::map<std::string, at::Tensor> whole;
  run_ranks(1, [&](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    AdamW optimizer(model, {}, {}, {.moments_dtype = at::kBFloat16});
    model(make_example(0).x).sum().backward();
    optimizer.step();
    for (const MomentShard& moment : optimizer.moments()) {
      whole[moment.name] = moment.exp_avg_sq.clone();
    }
  });
  run_ranks(3, [&](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    model.set_gradient_divide_factor(1.0);
    AdamW optimizer(model, {}, {}, {.moments_dtype = at::kBFloat16});
    // Only rank 0 has a gradient: the sum has the bits of a world of one.
    (model(make_example(0).x) * (world.rank() == 0 ? 1.0 : 0.0)).sum().backward();
    optimizer.step();
    const auto shards = model.parameter_shards();
    const auto moments = optimizer.moments();
    for (size_t i = 0; i < moments.size(); ++i) {
      EXPECT_TRUE(at::equal(
          whole.at(moments[i].name).narrow(0, shards[i].begin, shards[i].end - shards[i].begin),
          moments[i].exp_avg_sq))
          << moments[i].name;
    }
  });
}

// Rounded to nearest, a second moment would stay where it is for ever: each step changes it by less
// than half of its last bit.
TEST(MomentsInBf16, FollowGradientsThatGetSmaller) {
  constexpr int64_t kNumel = 4096;
  std::vector<float> master(kNumel, 1.0F);
  std::vector<uint16_t> exp_avg(kNumel, 0);
  std::vector<uint16_t> exp_avg_sq(kNumel, 0x3f80);  // 1.0
  const std::vector<float> gradient(kNumel, 0.1F);
  for (uint32_t step = 1; step <= 1000; ++step) {
    const kernels::AdamWStep numbers{.keep = 1,
                                     .step_size = 0,
                                     .one_minus_beta1 = 0.1F,
                                     .beta2 = 0.999F,
                                     .one_minus_beta2 = 0.001F,
                                     .number = step};
    kernels::adamw({.master = master.data(),
                    .exp_avg = exp_avg.data(),
                    .exp_avg_sq = exp_avg_sq.data(),
                    .gradient = gradient.data()},
                   kNumel, numbers);
  }
  double mean = 0;
  for (const uint16_t bits : exp_avg_sq) {
    mean += std::bit_cast<float>(static_cast<uint32_t>(bits) << 16) / kNumel;
  }
  const double exact = 0.01 + 0.99 * std::pow(0.999, 1000);
  EXPECT_NEAR(mean, exact, 0.01 * exact);
}

TEST(MomentsInBf16, RefusesOtherDtypes) {
  auto model = fully_shard(make_net(), Mesh::shard(World::alone()));
  expect_error([&] { AdamW bad(model, {}, {}, {.moments_dtype = at::kHalf}); }, ExitCode::Usage,
               {"[AdamW] moments_dtype is Float or BFloat16, got Half."});
}

TEST(GradScaler, LeavesFiniteGradientsAsTheyAre) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](World world) {
      const auto expected = train(world, {}, {});
      auto model = fully_shard(make_net(), Mesh::shard(world));
      AdamW optimizer(model, {.lr = 1e-2});
      GradScaler scaler(model, {.init_scale = 1024});
      for (int step = 0; step < 4; ++step) {
        const Example example = make_example(step * world.size() + world.rank());
        scaler.scale(sum_of_errors(model(example.x), example.y)).backward();
        EXPECT_EQ(scaler.step(optimizer).item<float>(), 0);
        optimizer.zero_grad();
      }
      for (const ParameterShard& shard : model.parameter_shards()) {  // powers of two change no bit
        EXPECT_TRUE(at::equal(expected.at(shard.name), shard.value)) << shard.name;
      }
    });
  }
}

TEST(GradScaler, SkipsOnAllRanksWhatOverflowsOnOne) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::HybridShard, Strategy::NoShard}) {
    run_ranks(4, [&](World world) {
      auto model = fully_shard(make_net(), mesh_for(world, strategy), {.strategy = strategy});
      AdamW optimizer(model, {.lr = 1e-2});
      GradScaler scaler(model, {.init_scale = 8, .growth_interval = 2});
      const auto before = model.parameter_shards().front().value.clone();
      const auto backward = [&](double factor) {
        scaler.scale(model(make_example(world.rank()).x).sum() * factor).backward();
      };
      backward(world.rank() == 3 ? std::numeric_limits<double>::infinity() : 1.0);
      EXPECT_EQ(scaler.unscale().item<float>(), 1);
      EXPECT_EQ(scaler.step(optimizer).item<float>(), 1);
      optimizer.zero_grad();
      EXPECT_EQ(scaler.scale(), 4);
      EXPECT_EQ(optimizer.steps_done(), 0);
      EXPECT_TRUE(at::equal(before, model.parameter_shards().front().value));
      for (int i = 0; i < 2; ++i) {
        backward(1.0);
        EXPECT_EQ(scaler.unscale().item<float>(), 0);
        const auto norm = clip_grad_norm(model, 0.1).item<double>();
        EXPECT_TRUE(std::isfinite(norm));
        EXPECT_EQ(scaler.step(optimizer).item<float>(), 0);
        optimizer.zero_grad();
      }
      EXPECT_EQ(scaler.scale(), 8);  // grown after two steps without an overflow
      EXPECT_EQ(optimizer.steps_done(), 2);
    });
  }
}

TEST(GradScaler, TrainsInFp16) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world),
                             {.precision = {.param_dtype = at::kHalf, .output_dtype = at::kFloat}});
    AdamW optimizer(model, {.lr = 1e-2});
    GradScaler scaler(model);
    const Example example = make_example(world.rank());
    double first = 0;
    double last = 0;
    for (int step = 0; step < 30; ++step) {
      const at::Tensor loss = sum_of_errors(model(example.x), example.y);
      last = loss.item<double>();
      first = step == 0 ? last : first;
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      optimizer.zero_grad();
    }
    EXPECT_LT(last, first / 2);
  });
}

TEST(GradScaler, RefusesNumbersThatMakeNoSense) {
  auto model = fully_shard(make_net(), Mesh::shard(World::alone()));
  expect_error([&] { GradScaler bad(model, {.backoff_factor = 2}); }, ExitCode::Usage,
               {"[GradScaler] init_scale and growth_interval must be above 0"});
}

}  // namespace
}  // namespace sherd::test
