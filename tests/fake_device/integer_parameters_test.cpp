// Frozen parameters of integers on devices with streams.

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "sherd/unit.h"
#include "tests/fake_device/ranks.h"
#include "tests/fake_device/streams.h"
#include "tests/support/seeded.h"

namespace sherd::fake {
namespace {

constexpr int64_t kCodedWidth = 7;

struct CodedMapImpl : torch::nn::Module {
  CodedMapImpl()
      : codes(register_parameter("codes", at::randint(256, {kCodedWidth, kCodedWidth}, at::kByte),
                                 false)),
        gain(register_parameter("gain", at::randn({kCodedWidth}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::linear(x, codes.to(x.scalar_type()) / 512) * gain;
  }
  at::Tensor codes;
  at::Tensor gain;
};
TORCH_MODULE(CodedMap);

struct CodedStackImpl : torch::nn::Module {
  CodedStackImpl()
      : a(register_module("a", Unit<CodedMap>())), b(register_module("b", Unit<CodedMap>())) {}
  at::Tensor forward(const at::Tensor& x) { return b(a(x)); }
  Unit<CodedMap> a;
  Unit<CodedMap> b;
};
TORCH_MODULE(CodedStack);

CodedStack coded_stack() {
  return test::seeded(4, [] { return CodedStack(); });
}

// The whole state after two steps, on rank 0.
StateDict trained_state(const World& world, const ShardOptions& options) {
  auto model = fully_shard(coded_stack(), Mesh::shard(world), options);
  const StreamsEndFirst streams_end_first(world);
  AdamW optimizer(model, {.lr = 1e-2});
  const at::Tensor x = test::seeded(5, [] {
                         return at::randn({3, kCodedWidth});
                       }).to(world.device());
  for (int step = 0; step < 2; ++step) {
    model(x).square().sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return full_state_dict(model);
}

void expect_as_on_the_host(bool on_host) {
  set_seed(1);
  ShardOptions options;
  options.precision.param_dtype = at::kBFloat16;
  const StateDict expected = trained_state(World::alone(), options);
  options.offload.parameters_on_host = on_host;
  run_ranks_on_devices(2, [&](World world) {
    const StateDict found = trained_state(world, options);
    for (const auto& item : found) {
      EXPECT_TRUE(at::allclose(item.value(), expected[item.key()], 1e-2, 1e-2)) << item.key();
      EXPECT_TRUE(item.value().is_floating_point() || at::equal(item.value(), expected[item.key()]))
          << item.key();
    }
  });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

TEST(IntegerParametersOnDevices, AreGatheredAsOnTheHost) {
  expect_as_on_the_host(false);
}

TEST(IntegerParametersOnDevices, RestOnTheHost) {
  expect_as_on_the_host(true);
}

}  // namespace
}  // namespace sherd::fake
