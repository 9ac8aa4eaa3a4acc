// Optimizers of LibTorch on views of the shards, against the same optimizer on the unsharded model:
// parameters after every step.

#include <chrono>
#include <functional>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/whole_state.h"

namespace sherd::test {
namespace {

constexpr int kSteps = 5;

using Optimizer = torch::optim::Optimizer;
using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;

std::unique_ptr<Optimizer> make_sgd(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(3e-3).momentum(0.9).weight_decay(0.01));
}

std::unique_ptr<Optimizer> make_adamw(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::AdamW>(
      std::move(parameters), torch::optim::AdamWOptions(1e-3).weight_decay(0.1).eps(1e-4));
}

struct OptimSetting {
  MakeOptimizer make = make_sgd;
  Strategy strategy = Strategy::FullShard;
  bool bfloat16 = false;
  int micro_batches = 1;
  bool set_to_none = true;
  [[nodiscard]] ShardOptions options() const {
    ShardOptions options{.strategy = strategy};
    if (bfloat16) {
      options.precision.param_dtype = at::kBFloat16;
    }
    return options;
  }
};

Example example_of(const OptimSetting& setting, int ranks, int step, int micro, int rank) {
  return make_example((step * setting.micro_batches + micro) * ranks + rank);
}

// In bf16 a rounded copy of the modules computes, and its gradients are added in fp32: what mixed
// precision means, written out.
double plain_backward(Net& net, const Example& part, const OptimSetting& setting, int ranks) {
  Net computing = net;
  if (setting.bfloat16) {
    computing = make_net();
    const at::NoGradGuard no_grad;
    for (const auto& item : net->named_parameters()) {
      computing->named_parameters()[item.key()].copy_(item.value());
    }
    computing->to(at::kBFloat16);
  }
  const at::Tensor x = setting.bfloat16 ? part.x.to(at::kBFloat16) : part.x;
  const at::Tensor loss = sum_of_errors(computing(x), part.y);
  (setting.bfloat16 ? loss : loss / ranks).backward();
  for (const auto& item : net->named_parameters()) {
    if (setting.bfloat16) {
      const at::Tensor gradient =
          computing->named_parameters()[item.key()].grad().to(at::kFloat) / ranks;
      at::Tensor& sum = item.value().mutable_grad();
      sum = sum.defined() ? sum + gradient : gradient;
    }
  }
  return loss.item<double>();
}

struct OptimTrace {
  std::vector<double> losses;      // of every example, in order
  std::vector<WholeState> values;  // after each step
};

OptimTrace train_plain_with(const OptimSetting& setting, int ranks) {
  Net net = make_net();
  const auto optimizer = setting.make(net->parameters());
  OptimTrace trace;
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < setting.micro_batches; ++micro) {
      for (int rank = 0; rank < ranks; ++rank) {
        trace.losses.push_back(
            plain_backward(net, example_of(setting, ranks, step, micro, rank), setting, ranks));
      }
    }
    optimizer->step();
    optimizer->zero_grad();
    trace.values.push_back(states_of(*net));
  }
  return trace;
}

void check_close(const ShardedModule& model, const WholeState& whole, int step) {
  for (const ParameterShard& shard : model.parameter_shards()) {
    const at::Tensor expected =
        whole.at(shard.name).narrow(0, shard.begin, shard.end - shard.begin);
    TORCH_CHECK(at::allclose(expected, shard.value, 1e-4, 2e-6), shard.name, " differs after step ",
                step, ", by up to ", (expected - shard.value).abs().max().item<double>());
  }
}

void check_sharded(const World& world, const OptimSetting& setting, const OptimTrace& trace) {
  auto model = fully_shard(make_net(), Mesh::shard(world), setting.options());
  const auto optimizer = setting.make(optim_parameters(model).values());
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < setting.micro_batches; ++micro) {
      const Example part = example_of(setting, world.size(), step, micro, world.rank());
      const at::Tensor loss = sum_of_errors(model(part.x), part.y);
      const auto index =
          static_cast<size_t>((step * setting.micro_batches + micro) * world.size() + world.rank());
      const double expected = trace.losses[index];
      const double tolerance = setting.bfloat16 ? 2e-2 : 1e-4;
      TORCH_CHECK(std::abs(loss.item<double>() - expected) <= tolerance * (1 + expected),
                  "loss of step ", step, ": ", loss.item<double>(), " and ", expected);
      loss.backward();
    }
    optimizer->step();
    optimizer->zero_grad(setting.set_to_none);
    check_close(model, trace.values[static_cast<size_t>(step)], step);
  }
}

void expect_optimizer_equals_plain(const OptimSetting& setting) {
  for (const int ranks : {1, 2, 3, 4}) {
    const OptimTrace trace = train_plain_with(setting, ranks);
    EXPECT_NO_THROW(run_ranks(ranks, [&](World world) { check_sharded(world, setting, trace); }))
        << ranks << " ranks";
  }
}

TEST(TorchOptim, SgdWithMomentumEqualsUnsharded) {
  expect_optimizer_equals_plain({.make = make_sgd});
  expect_optimizer_equals_plain({.make = make_sgd, .strategy = Strategy::ShardGradOp});
}

TEST(TorchOptim, AdamWEqualsUnsharded) {
  expect_optimizer_equals_plain({.make = make_adamw});
  expect_optimizer_equals_plain({.make = make_adamw, .strategy = Strategy::ShardGradOp});
}

TEST(TorchOptim, EqualsUnshardedInBFloat16) {
  expect_optimizer_equals_plain({.make = make_sgd, .bfloat16 = true});
  expect_optimizer_equals_plain({.make = make_adamw, .bfloat16 = true});
}

TEST(TorchOptim, AccumulatesUntilGradientsAreReset) {
  expect_optimizer_equals_plain({.micro_batches = 3});
  expect_optimizer_equals_plain({.micro_batches = 2, .set_to_none = false});
}

TEST(TorchOptim, EqualsUnshardedInProcesses) {
  for (const bool bfloat16 : {false, true}) {
    const OptimSetting setting{.make = make_adamw, .bfloat16 = bfloat16};
    const auto statuses = run_processes(
        3, [&](World world) { check_sharded(world, setting, train_plain_with(setting, 3)); });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0}));
  }
}

template <class Model>
void backward(Model& model, int index) {
  const Example example = make_example(index);
  sum_of_errors(model(example.x), example.y).backward();
}

TEST(TorchOptim, SeesOneViewForEachTrainableParameter) {
  run_ranks(4, [](World world) {
    Net net = make_net();
    net->input->weight.requires_grad_(false);
    auto model = fully_shard(net, Mesh::shard(world));
    const auto views = optim_parameters(model);
    EXPECT_FALSE(views.contains("input.weight"));  // frozen when it was sharded
    EXPECT_EQ(views.size(), 15U);
    EXPECT_TRUE(optim_parameters(model)["head.bias"].is_same(views["head.bias"]));
    net->blocks[0]->up->bias.requires_grad_(false);  // frozen afterwards
    backward(model, world.rank());
    for (const ParameterShard& shard : model.parameter_shards()) {
      if (shard.name == "input.weight") {
        continue;
      }
      const at::Tensor& view = views[shard.name];
      EXPECT_EQ(view.const_data_ptr(), shard.value.const_data_ptr()) << shard.name;
      EXPECT_EQ(view.numel(), shard.end - shard.begin) << shard.name;
      EXPECT_TRUE(view.is_leaf() && view.requires_grad());
      EXPECT_EQ(view.grad().defined(), shard.name != "block0.up.bias") << shard.name;
      if (view.grad().defined()) {
        EXPECT_TRUE(at::equal(view.grad(), shard.gradient)) << shard.name;
      }
    }
    model.zero_grad();
    EXPECT_FALSE(views["head.weight"].grad().defined());
  });
}

TEST(TorchOptim, MayHavePartsOfTheModel) {
  const auto train = [](const World& world, bool two_optimizers) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    std::vector<at::Tensor> weights;
    std::vector<at::Tensor> biases;
    for (const auto& item : optim_parameters(model)) {
      (item.key().ends_with("bias") ? biases : weights).push_back(item.value());
    }
    const auto first = make_sgd(weights);
    const auto second = make_sgd(biases);
    for (int step = 0; step < 2 * kSteps; ++step) {
      backward(model, step * world.size() + world.rank());
      first->step();
      first->zero_grad();
      if (step % 2 == 1 || !two_optimizers) {  // else their gradients are added to
        second->step();
        second->zero_grad();
      }
    }
    WholeState values;
    for (const auto& item : full_state_dict(model, {.rank0_only = false})) {
      values[item.key()] = item.value().reshape({-1});
    }
    return values;
  };
  WholeState expected;
  Net plain = make_net();
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  for (const auto& item : plain->named_parameters()) {
    (item.key().ends_with("bias") ? biases : weights).push_back(item.value());
  }
  const auto first = make_sgd(weights);
  const auto second = make_sgd(biases);
  for (int step = 0; step < 2 * kSteps; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      const Example example = make_example(step * 2 + rank);
      (sum_of_errors(plain(example.x), example.y) / 2).backward();
    }
    first->step();
    first->zero_grad();
    if (step % 2 == 1) {
      second->step();
      second->zero_grad();
    }
  }
  run_ranks(2, [&](World world) {
    const WholeState values = train(world, true);
    for (const auto& [name, whole] : states_of(*plain)) {
      EXPECT_TRUE(at::allclose(values.at(name), whole, 1e-4, 2e-6)) << name;
    }
    EXPECT_FALSE(at::allclose(train(world, false).at("head.bias"), values.at("head.bias")));
  });
}

TEST(TorchOptim, IsGivenClippedGradients) {
  run_ranks(3, [](World world) {
    for (const bool views_first : {true, false}) {
      auto model = fully_shard(make_net(), Mesh::shard(world));
      if (views_first) {
        static_cast<void>(optim_parameters(model));
      }
      backward(model, world.rank());
      EXPECT_GT(clip_grad_norm(model, 0.5).item<double>(), 0.5);
      double squares = 0;
      for (const at::Tensor& view : optim_parameters(model).values()) {
        squares += view.grad().square().sum().item<double>();
      }
      world.all_reduce({&squares, 1});
      EXPECT_NEAR(std::sqrt(squares), 0.5, 1e-4);
    }
  });
}

TEST(TorchOptim, StepAfterAnEvaluationDoesNotReachAnotherRanksEvaluation) {
  for (const bool bfloat16 : {false, true}) {
    run_ranks(3, [&](World world) {
      auto model =
          fully_shard(make_net(), Mesh::shard(world), OptimSetting{.bfloat16 = bfloat16}.options());
      torch::optim::SGD optimizer(optim_parameters(model).values(), 0.5);
      const auto evaluate = [&](bool slowly) {
        const at::NoGradGuard no_grad;
        return model.run(
            [&](NetImpl& net, const at::Tensor& x) {
              at::Tensor hidden = net.input(x);
              for (auto& block : net.blocks) {
                if (slowly && world.rank() == 2) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(20));
                }
                hidden = block(hidden);
              }
              return net.head(hidden);
            },
            make_example(1).x);
      };
      const at::Tensor before = evaluate(false);
      for (int step = 0; step < 2; ++step) {
        backward(model, world.rank());
        const at::Tensor expected = evaluate(false);
        EXPECT_TRUE(at::equal(evaluate(true), expected)) << "rank " << world.rank();
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_FALSE(at::equal(evaluate(false), before));
    });
  }
}

TEST(TorchOptim, StepAfterAFailedStepIsSeenByTheNext) {
  run_ranks(2, [](World world) {
    auto model =
        fully_shard(make_net(), Mesh::shard(world), OptimSetting{.bfloat16 = true}.options());
    torch::optim::SGD optimizer(optim_parameters(model).values(), 0.5);
    backward(model, world.rank());
    EXPECT_THROW(
        model.run(
            [](NetImpl&, const at::Tensor&) -> at::Tensor { throw std::runtime_error("blown"); },
            make_example(1).x),
        std::runtime_error);
    optimizer.step();
    const at::Tensor output = model(make_example(1).x);
    auto fresh =
        fully_shard(make_net(), Mesh::shard(world), OptimSetting{.bfloat16 = true}.options());
    load_full_state_dict(fresh, full_state_dict(model));
    EXPECT_TRUE(at::equal(output, fresh(make_example(1).x)));
  });
}

TEST(TorchOptim, MeetsLoadedValues) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    torch::optim::SGD optimizer(optim_parameters(model).values(), 0.5);
    const StateDict start = full_state_dict(model);
    const at::Tensor expected = model(make_example(1).x);
    backward(model, world.rank());
    optimizer.step();
    EXPECT_FALSE(at::equal(model(make_example(1).x), expected));
    load_full_state_dict(model, start);
    EXPECT_TRUE(at::equal(model(make_example(1).x), expected));
  });
}

TEST(TorchOptim, InsideAStepIsRefused) {
  auto model = fully_shard(make_net(), Mesh::shard(World::alone()));
  const auto inside = [&](NetImpl& net, const at::Tensor& x) {
    static_cast<void>(optim_parameters(model));
    return net.input(x);
  };
  expect_error([&] { model.run(inside, make_example(1).x); }, ExitCode::Usage,
               {"[optim_parameters] was called inside the forward of unit 'root'"});
}

}  // namespace
}  // namespace sherd::test
