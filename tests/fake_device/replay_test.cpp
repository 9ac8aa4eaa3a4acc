// Units with buffers whose forward is computed again, on a device: without a wait of the host, in
// graphs too, and to the values that one forward leaves.

#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "sherd/fully_shard.h"
#include "sherd/sharded_module.h"
#include "tests/fake_device/fake_device.h"
#include "tests/fake_device/ranks.h"
#include "tests/fake_device/streams.h"
#include "tests/support/odd_nets.h"
#include "tests/support/seeded.h"

namespace sherd::fake {
namespace {

using Inputs = std::vector<at::Tensor>;

// Its output depends on a buffer that it changes, which lies on the device from the start.
struct AveragingImpl : torch::nn::Module {
  explicit AveragingImpl(c10::Device device)
      : linear(register_module("linear", torch::nn::Linear(test::kOdd, test::kOdd))),
        mean(register_buffer("mean", at::zeros({test::kOdd}).to(device))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::tanh(linear(x) - mean);
    mean.mul_(0.9).add_(x.detach().mean(0), 0.1);
    return y;
  }
  torch::nn::Linear linear;
  at::Tensor mean;
};
TORCH_MODULE(Averaging);

struct AveragingNetImpl : torch::nn::Module {
  explicit AveragingNetImpl(c10::Device device)
      : first(register_module("first", Unit<Averaging>(device))),
        second(register_module("second", Unit<Averaging>(device))) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  Unit<Averaging> first;
  Unit<Averaging> second;
};
TORCH_MODULE(AveragingNet);

ShardOptions options_of(bool is_checkpointed) {
  return {.units = unit_policy::every_unit({.checkpoint_activations = is_checkpointed})};
}

// Losses of six micro-batches, gradients and buffers, on the host.
std::vector<at::Tensor> train_averaging(const World& world, bool is_checkpointed, bool as_graphs) {
  auto net = test::seeded(3, [&] { return AveragingNet(world.device()); });
  auto model = fully_shard(net, Mesh::shard(world), options_of(is_checkpointed));
  const StreamsEndFirst streams_end_first(world);
  const auto micro_batch = [&](const Inputs& in) {
    const at::Tensor loss = model(in[0]).square().sum();
    loss.backward();
    return loss.detach();
  };
  std::optional<MicroBatchGraphs> graphs;
  if (as_graphs) {
    graphs.emplace(model);
  }
  std::vector<at::Tensor> values;
  for (int i = 0; i < 6; ++i) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(i));
    const Inputs in = {at::randn({4, test::kOdd}, generator).to(world.device())};
    static_cast<void>(take_host_waits(world.device().index()));
    const at::Tensor loss = as_graphs ? graphs->run(in, micro_batch).clone() : micro_batch(in);
    if (!as_graphs) {
      EXPECT_EQ(take_host_waits(world.device().index()), std::vector<std::string>{});
    }
    values.push_back(loss.cpu());
  }
  EXPECT_TRUE(!as_graphs || graphs->counts().launches > 0);
  for (const ParameterShard& shard : model.parameter_shards()) {
    values.push_back(shard.gradient.cpu().clone());
  }
  for (const auto& buffer : net->named_buffers()) {
    values.push_back(buffer.value().cpu().clone());
  }
  return values;
}

TEST(Replay, OfUnitsWithBuffersMakesNoHostWaitAndIsCaptured) {
  for (const uint64_t seed : {1, 2}) {
    set_seed(seed);
    run_ranks_on_devices(2, [](const World& world) {
      const std::vector<at::Tensor> expected = train_averaging(world, false, false);
      for (const bool as_graphs : {false, true}) {
        const std::vector<at::Tensor> values = train_averaging(world, true, as_graphs);
        ASSERT_EQ(values.size(), expected.size());
        for (size_t i = 0; i < values.size(); ++i) {
          EXPECT_TRUE(at::equal(values[i], expected[i]))
              << "value " << i << (as_graphs ? ", as graphs" : "");
        }
      }
    });
    EXPECT_EQ(take_faults(), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace sherd::fake
