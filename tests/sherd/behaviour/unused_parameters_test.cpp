// Parameters that no rank used in a step are left alone, as by LibTorch's optimizers on the
// unsharded model; those that some rank used are updated on all.

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/meshes.h"
#include "tests/support/odd_nets.h"
#include "tests/support/ranks.h"

namespace sherd::test {
namespace {

/// A choice of experts in one unit, and a unit that may be left out.
struct UnusedExpertsImpl : torch::nn::Module {
  UnusedExpertsImpl() {
    for (int i = 0; i < 3; ++i) {
      experts.push_back(
          register_module("expert" + std::to_string(i), torch::nn::Linear(kOdd, kOdd)));
    }
  }
  at::Tensor forward(const at::Tensor& x, int64_t expert) {
    return at::tanh(experts.at(static_cast<size_t>(expert))(x));
  }
  std::vector<torch::nn::Linear> experts;
};
TORCH_MODULE(UnusedExperts);
struct RoutedNetImpl : torch::nn::Module {
  RoutedNetImpl()
      : first(register_module("first", Unit<Layer>())),
        routed(register_module("routed", Unit<UnusedExperts>())),
        extra(register_module("extra", Unit<Layer>())),
        head(register_module("head", torch::nn::Linear(kOdd, 2))),
        unused(register_module("unused", torch::nn::Linear(kOdd, 2))) {}
  at::Tensor forward(const at::Tensor& x, int64_t expert, bool with_extra) {
    at::Tensor y = routed(first(x), expert);
    if (with_extra) {
      y = extra(y);
    }
    return head(y);
  }
  Unit<Layer> first;
  Unit<UnusedExperts> routed;
  Unit<Layer> extra;
  torch::nn::Linear head;
  torch::nn::Linear unused;
};
TORCH_MODULE(RoutedNet);

// Which way rank `rank` goes in a step: all by expert 0 at first, later some by expert 1; expert 2
// comes late, and once only by one rank.
int64_t expert_of(int step, int64_t rank) {
  return step < 2 ? 0 : step == 4 ? 2 : step >= 5 && rank == 1 ? 2 : step % 2;
}
bool extra_of(int step) {
  return step == 3 || step == 6;
}

struct RoutedCase {
  Strategy strategy = Strategy::FullShard;
  int micro_batches = 1;
  bool clips = false;
  bool views = false;  // torch::optim::AdamW over optim_parameters()
  bool freezes = false;
};
constexpr int kRoutedSteps = 8;

// Parts of the model that are frozen in some steps.
void set_frozen(RoutedNetImpl& net, int step) {
  const bool trained = step == 0 || step >= 3;
  for (const at::Tensor& parameter : net.first->parameters()) {
    parameter.set_requires_grad(trained);
  }
}

template <class Model>
void run_micro_batch(Model& model, int step, int micro, int64_t rank, int ranks) {
  const at::Tensor output =
      model(odd_input(100 * step + 10 * micro + rank), expert_of(step, rank), extra_of(step));
  (loss_of(output) / ranks).backward();
}

using NamedValues = std::map<std::string, at::Tensor>;

std::vector<NamedValues> train_plain_routed(const RoutedCase& how, int ranks) {
  RoutedNet net = builder<RoutedNet>()();
  torch::optim::AdamW optimizer(net->parameters(),
                                torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  std::vector<NamedValues> trace;
  for (int step = 0; step < kRoutedSteps; ++step) {
    if (how.freezes) {
      set_frozen(*net, step);
    }
    optimizer.zero_grad();
    for (int micro = 0; micro < how.micro_batches; ++micro) {
      for (int rank = 0; rank < ranks; ++rank) {
        run_micro_batch(net, step, micro, rank, ranks);
      }
    }
    optimizer.step();
    NamedValues& values = trace.emplace_back();
    for (const auto& item : net->named_parameters()) {
      values[item.key()] = item.value().detach().clone().reshape({-1});
    }
  }
  return trace;
}

void check_values(const ShardedModule& model, const NamedValues& whole, int step) {
  for (const ParameterShard& shard : model.parameter_shards()) {
    const at::Tensor expected =
        whole.at(shard.name).narrow(0, shard.begin, shard.end - shard.begin);
    TORCH_CHECK(at::allclose(expected, shard.value, 1e-4, 1e-5), shard.name, " differs in step ",
                step, ", by up to ", (expected - shard.value).abs().max().item<double>());
  }
}

void train_routed(const World& world, const RoutedCase& how,
                  const std::vector<NamedValues>& trace) {
  RoutedNet net = builder<RoutedNet>()();
  auto model = fully_shard(net, mesh_for(world, how.strategy), {.strategy = how.strategy});
  model.set_gradient_divide_factor(1.0);
  std::unique_ptr<AdamW> fused;
  std::unique_ptr<torch::optim::AdamW> stock;
  if (how.views) {
    stock = std::make_unique<torch::optim::AdamW>(
        optim_parameters(model).values(), torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  } else {
    fused = std::make_unique<AdamW>(model, AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
  }
  for (int step = 0; step < kRoutedSteps; ++step) {
    if (how.freezes) {
      set_frozen(*net, step);
    }
    for (int micro = 0; micro < how.micro_batches; ++micro) {
      run_micro_batch(model, step, micro, world.rank(), world.size());
    }
    if (how.clips) {
      static_cast<void>(clip_grad_norm(model, 1e9));
    }
    if (fused) {
      fused->step();
    } else {
      stock->step();
    }
    model.zero_grad();
    check_values(model, trace[static_cast<size_t>(step)], step);
  }
}

void expect_routed_equals_plain(RoutedCase how) {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto trace = train_plain_routed(how, ranks);
    for (const Strategy strategy : kStrategies) {
      how.strategy = strategy;
      EXPECT_NO_THROW(run_ranks(ranks, [&](World world) { train_routed(world, how, trace); }))
          << ranks << " ranks, " << name_of(strategy);
    }
  }
}

TEST(UnusedParameters, AreLeftAlone) {
  expect_routed_equals_plain({});
  expect_routed_equals_plain({.clips = true});
}

TEST(UnusedParameters, OfSomeMicroBatchesAreUpdated) {
  expect_routed_equals_plain({.micro_batches = 2});
}

TEST(UnusedParameters, HaveNoGradientInViews) {
  expect_routed_equals_plain({.views = true});
  expect_routed_equals_plain({.micro_batches = 2, .views = true});
}

// A parameter that is trained again goes on with its own bias correction.
TEST(UnusedParameters, MayBeFrozenForAWhile) {
  expect_routed_equals_plain({.freezes = true});
  expect_routed_equals_plain({.views = true, .freezes = true});
}

}  // namespace
}  // namespace sherd::test
