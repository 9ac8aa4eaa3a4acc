#pragma once
// Any small model, trained sharded on some ranks and unsharded on one: the parameters must be equal
// after each step.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/meshes.h"
#include "tests/support/ranks.h"

namespace sherd::test {

/// Where a loss is computed.
struct Place {
  int step = 0;
  int rank = 0;
};

inline constexpr int kComparedSteps = 4;

/// What a run showed at one step: whole tensors, by name.
struct ComparedStep {
  std::vector<double> losses;                    ///< of each rank
  std::map<std::string, at::Tensor> gradients;   ///< as the optimizer saw them; none for none
  std::map<std::string, at::Tensor> parameters;  ///< after the step
};
using PlainTrace = std::vector<ComparedStep>;

/// A tied parameter once: LibTorch's own list has it under each name, and would update it as often.
inline std::vector<at::Tensor> distinct(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> found;
  for (const at::Tensor& parameter : parameters) {
    if (std::none_of(found.begin(), found.end(),
                     [&](const at::Tensor& other) { return other.is_same(parameter); })) {
      found.push_back(parameter);
    }
  }
  return found;
}

/// `loss(model, net, place)` computes the loss of one rank and step on `model`, which is the plain
/// holder or the sharded handle of it; `net` is the holder in both cases. Parameters without
/// gradient are left alone.
template <class Build, class Loss>
PlainTrace train_unsharded(const Build& build, const Loss& loss, int ranks) {
  auto net = build();
  torch::optim::AdamW optimizer(distinct(net->parameters()),
                                torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  PlainTrace trace;
  for (int step = 0; step < kComparedSteps; ++step) {
    ComparedStep& shown = trace.emplace_back();
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor value = loss(net, net, Place{step, rank});
      shown.losses.push_back(value.template item<double>());
      (value / ranks).backward();
    }
    for (const auto& item : net->named_parameters()) {
      if (item.value().grad().defined()) {
        shown.gradients[item.key()] = item.value().grad().clone();
      }
    }
    optimizer.step();
    for (const auto& item : net->named_parameters()) {
      shown.parameters[item.key()] = item.value().detach().clone();
    }
  }
  return trace;
}

/// Throws, naming parameter and step, unless a rank's part of a tensor equals that of the whole.
inline void check_part(const ParameterShard& shard, const at::Tensor& actual,
                       const at::Tensor& whole, const char* what, int step) {
  const at::Tensor expected = whole.reshape({-1}).narrow(0, shard.begin, shard.end - shard.begin);
  TORCH_CHECK(at::allclose(expected, actual, 1e-4, 1e-5), what, " of ", shard.name,
              " differs in step ", step, ", by up to ",
              (expected - actual).abs().max().item<double>());
}

/// Trains a sharded model as train_unsharded() trained the plain one. Throws where a loss, a
/// gradient or a parameter of a step differs.
template <class Model, class Net, class Loss>
void train_and_check(Model& model, Net& net, const Loss& loss, const PlainTrace& trace) {
  const int rank = model.world().rank();
  AdamW optimizer(model, {.lr = 1e-2, .weight_decay = 0.1});
  for (int step = 0; step < kComparedSteps; ++step) {
    const ComparedStep& expected = trace[static_cast<size_t>(step)];
    const at::Tensor value = loss(model, net, Place{step, rank});
    const double plain = expected.losses[static_cast<size_t>(rank)];
    TORCH_CHECK(std::abs(value.template item<double>() - plain) <= 1e-4 * (std::abs(plain) + 1e-1),
                "the loss of step ", step, " is ", value.template item<double>(), ", not ", plain);
    value.backward();
    for (const ParameterShard& shard : model.parameter_shards()) {
      const auto gradient = expected.gradients.find(shard.name);
      if (gradient != expected.gradients.end()) {
        TORCH_CHECK(shard.gradient.defined(), shard.name, " has no gradient in step ", step);
        check_part(shard, shard.gradient, gradient->second, "the gradient", step);
      }
    }
    optimizer.step();
    optimizer.zero_grad();
    for (const ParameterShard& shard : model.parameter_shards()) {
      check_part(shard, shard.value, expected.parameters.at(shard.name), "the value", step);
    }
  }
}

/// `options` but for the strategy: all are tried.
template <class Build, class Loss>
void expect_equals_plain(const Build& build, const Loss& loss, ShardOptions options = {}) {
  for (const int ranks : {1, 2, 3, 4}) {
    const PlainTrace trace = train_unsharded(build, loss, ranks);
    for (const Strategy strategy : kStrategies) {
      options.strategy = strategy;
      EXPECT_NO_THROW(run_ranks(ranks,
                                [&](World world) {
                                  auto net = build();
                                  auto model = fully_shard(net, mesh_for(world, strategy), options);
                                  train_and_check(model, net, loss, trace);
                                }))
          << ranks << " ranks, " << name_of(strategy);
    }
  }
}

}  // namespace sherd::test
