#pragma once
// Any small model, trained sharded on some ranks and unsharded on one: the parameters must be equal
// after each step.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
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

/// Whole parameters after each step, by name.
using ParameterTrace = std::vector<std::map<std::string, at::Tensor>>;

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
/// holder or the sharded handle of it; `net` is the holder in both cases. `unused_are_zeros` says
/// that parameters without gradient are updated with zeros, as within a unit that ran.
template <class Build, class Loss>
ParameterTrace train_unsharded(const Build& build, const Loss& loss, int ranks,
                               bool unused_are_zeros) {
  auto net = build();
  torch::optim::AdamW optimizer(distinct(net->parameters()),
                                torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  ParameterTrace trace;
  for (int step = 0; step < kComparedSteps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      (loss(net, net, Place{step, rank}) / ranks).backward();
    }
    for (const auto& parameter : net->parameters()) {
      if (unused_are_zeros && parameter.requires_grad() && !parameter.grad().defined()) {
        parameter.mutable_grad() = at::zeros_like(parameter);
      }
    }
    optimizer.step();
    auto& values = trace.emplace_back();
    for (const auto& item : net->named_parameters()) {
      values[item.key()] = item.value().detach().clone();
    }
  }
  return trace;
}

/// Throws, naming the parameter and step, unless this rank's parts equal those of the trace.
inline void check_shards(const ShardedModule& model,
                         const std::map<std::string, at::Tensor>& wholes, int step) {
  for (const ParameterShard& shard : model.parameter_shards()) {
    const at::Tensor expected =
        wholes.at(shard.name).view({-1}).narrow(0, shard.begin, shard.end - shard.begin);
    TORCH_CHECK(at::allclose(expected, shard.value, 1e-4, 1e-5), shard.name, " differs after step ",
                step, ", by up to ", (expected - shard.value).abs().max().item<double>());
  }
}

template <class Build, class Loss>
void expect_equals_plain(const Build& build, const Loss& loss, bool unused_are_zeros = true) {
  for (const int ranks : {1, 2, 3, 4}) {
    const ParameterTrace trace = train_unsharded(build, loss, ranks, unused_are_zeros);
    for (const Strategy strategy : kStrategies) {
      EXPECT_NO_THROW(run_ranks(ranks,
                                [&](World world) {
                                  auto net = build();
                                  auto model = fully_shard(net, mesh_for(world, strategy),
                                                           {.strategy = strategy});
                                  AdamW optimizer(model, {.lr = 1e-2, .weight_decay = 0.1});
                                  for (int step = 0; step < kComparedSteps; ++step) {
                                    loss(model, net, Place{step, world.rank()}).backward();
                                    optimizer.step();
                                    optimizer.zero_grad();
                                    check_shards(model, trace[static_cast<size_t>(step)], step);
                                  }
                                }))
          << ranks << " ranks, " << name_of(strategy);
    }
  }
}

}  // namespace sherd::test
