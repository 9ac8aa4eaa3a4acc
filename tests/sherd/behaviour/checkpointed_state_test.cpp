// What activation checkpointing must not change by computing twice: the dtype that units compute
// in, and buffers.

#include <mutex>
#include <set>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include "tests/support/buffered_net.h"
#include "tests/support/compare_with_plain.h"
#include "tests/support/odd_nets.h"

namespace sherd::test {
namespace {

/// Notes the dtype of its weight whenever it computes.
struct DtypeProbeImpl : torch::nn::Module {
  explicit DtypeProbeImpl(std::shared_ptr<std::set<at::ScalarType>> found)
      : seen(std::move(found)), linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) {
    seen->insert(linear->weight.scalar_type());
    return at::tanh(linear(x));
  }
  std::shared_ptr<std::set<at::ScalarType>> seen;
  torch::nn::Linear linear;
};
TORCH_MODULE(DtypeProbe);
struct ProbeHostImpl : torch::nn::Module {
  explicit ProbeHostImpl(const std::shared_ptr<std::set<at::ScalarType>>& seen)
      : first(register_module("first", Unit<DtypeProbe>(seen))),
        second(register_module("second", Unit<DtypeProbe>(seen))) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  Unit<DtypeProbe> first;
  Unit<DtypeProbe> second;
};
TORCH_MODULE(ProbeHost);
struct ProbeNetImpl : torch::nn::Module {
  explicit ProbeNetImpl(const std::shared_ptr<std::set<at::ScalarType>>& seen)
      : host(register_module("host", Unit<ProbeHost>(seen))) {}
  at::Tensor forward(const at::Tensor& x) { return host(x); }
  Unit<ProbeHost> host;
};
TORCH_MODULE(ProbeNet);

TEST(CheckpointedState, InnerUnitsTrainInParamDtypeAndEvaluateInFull) {
  run_ranks(2, [](World world) {
    const auto seen = std::make_shared<std::set<at::ScalarType>>();
    const ShardOptions options{
        .precision = {.param_dtype = at::kBFloat16, .full_precision_in_eval = true},
        .units = [](const ModuleInfo& info) {
          return info.is_unit
                     ? std::optional(UnitOptions{.checkpoint_activations = info.name == "host"})
                     : std::nullopt;
        }};
    auto model = fully_shard(ProbeNet(seen), Mesh::shard(world), options);
    for (int step = 0; step < 2; ++step) {
      seen->clear();
      loss_of(model(odd_input(step))).backward();
      EXPECT_EQ(*seen, std::set<at::ScalarType>{at::kBFloat16});
      seen->clear();
      const at::NoGradGuard no_grad;
      static_cast<void>(model(odd_input(step)));
      EXPECT_EQ(*seen, std::set<at::ScalarType>{at::kFloat});
    }
  });
}

/// Reads its buffers before it changes them, in one unit, or in a unit inside one.
struct NormHostImpl : torch::nn::Module {
  NormHostImpl()
      : norm(register_module("norm", Unit<Norm>())),
        batch(register_module("batch", torch::nn::BatchNorm1d(kOdd))),
        linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(batch(norm(x))); }
  Unit<Norm> norm;
  torch::nn::BatchNorm1d batch;
  torch::nn::Linear linear;
};
TORCH_MODULE(NormHost);
struct NormHostNetImpl : torch::nn::Module {
  NormHostNetImpl() : host(register_module("host", Unit<NormHost>())) {}
  at::Tensor forward(const at::Tensor& x) { return host(host(x)); }
  Unit<NormHost> host;
};
TORCH_MODULE(NormHostNet);

TEST(CheckpointedState, BuffersAreChangedOnceAndReadAsTheyWere) {
  for (const bool inner : {false, true}) {
    run_ranks(2, [&](World world) {
      const auto step = [&](bool checkpointed) {
        auto net = builder<NormHostNet>()();
        auto model = fully_shard(
            net, Mesh::shard(world), {.units = [&](const ModuleInfo& info) {
              const bool wanted = checkpointed && (inner || info.name == "host");
              return info.is_unit ? std::optional(UnitOptions{.checkpoint_activations = wanted})
                                  : std::nullopt;
            }});
        for (int number = 0; number < 2; ++number) {
          loss_of(model(odd_input(10 * number + world.rank()))).backward();
        }
        std::vector<at::Tensor> found;
        for (const ParameterShard& shard : model.parameter_shards()) {
          found.push_back(shard.gradient.clone());
        }
        for (const auto& item : net->named_buffers()) {
          found.push_back(item.value().clone());
        }
        return found;
      };
      const auto expected = step(false);
      const auto actual = step(true);
      ASSERT_EQ(expected.size(), actual.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(expected[i], actual[i], 1e-5, 1e-6)) << "tensor " << i;
      }
    });
  }
}

}  // namespace
}  // namespace sherd::test
