// The gradient scaler with LibTorch's optimizers over views, and without its step().

#include <limits>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/meshes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

at::Tensor scaled_loss(Sharded<Net>& model, const GradScaler& scaler, int64_t number) {
  const Example example = make_example(number * 10 + model.world().rank());
  return scaler.scale(sum_of_errors(model(example.x), example.y));
}

std::vector<at::Tensor> values_after(const World& world, Strategy strategy, double scale) {
  auto model = fully_shard(make_net(), mesh_for(world, strategy), {.strategy = strategy});
  torch::optim::SGD optimizer(optim_parameters(model).values(), 1e-2);
  GradScaler scaler(model, {.init_scale = scale});
  for (int64_t step = 0; step < 3; ++step) {
    scaled_loss(model, scaler, step).backward();
    EXPECT_EQ(scaler.unscale().item<float>(), 0);
    EXPECT_EQ(scaler.unscale().item<float>(), 0);  // once
    optimizer.step();                              // not the scaler's: it must not remember
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> values;
  for (const ParameterShard& shard : model.parameter_shards()) {
    values.push_back(shard.value.clone());
  }
  return values;
}

TEST(GradScalerOverViews, UnscalesWhatTheOptimizerReads) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::NoShard}) {
    run_ranks(2, [&](World world) {
      const auto expected = values_after(world, strategy, 1);
      const auto actual = values_after(world, strategy, 65536);  // powers of two change no bit
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(expected[i], actual[i])) << "parameter " << i;
      }
    });
  }
}

}  // namespace
}  // namespace sherd::test
