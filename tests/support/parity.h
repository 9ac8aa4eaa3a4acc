#pragma once
// The sharded model against the same model in plain LibTorch, unsharded and with
// torch::optim::AdamW: losses, gradients and parameters of each of ten steps, however the batch is
// cut.

#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/meshes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {

inline constexpr int kSteps = 10;
inline constexpr int64_t kRows = 12;  // of a global batch
inline constexpr double kLr = 1e-4;

/// How the rows of a batch are dealt out: micro-batch m of rank r is number m × ranks + r.
struct Cut {
  int ranks = 1;
  int micro_batches = 1;
  [[nodiscard]] int64_t rows() const { return kRows / (ranks * micro_batches); }
};

struct Setting {
  std::optional<double> max_norm = std::nullopt;
  double norm_type = 2.0;
  bool groups = false;                ///< biases: no decay, ten times the learning rate
  double gradient_divide_factor = 1;  ///< 0: the default, an average over the ranks
  bool bfloat16 = false;
  Strategy strategy = Strategy::FullShard;
  bool sync_last_only = false;  ///< set_requires_gradient_sync(false) until the last micro-batch
  bool all_reduce_last_only = false;  ///< set_requires_all_reduce(false) until the last
  bool keep_parameters = false;       ///< set_reshard_after_backward(false)
  ShardOptions options = {};  ///< what else differs; strategy and param_dtype are set from above
};

/// What a run showed at each step. Gradients are those that the optimizer saw, clipped.
struct Trace {
  struct Step {
    double loss = 0;
    double norm = 0;
    std::map<std::string, at::Tensor> gradients;
    std::map<std::string, at::Tensor> parameters;
  };
  std::vector<Step> steps;
};

inline Example batch_of(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(500 + step));
  return {at::randn({kRows, 5}, generator), at::randn({kRows, 3}, generator)};
}

inline Example part_of(const Example& batch, const Cut& cut, int micro, int rank) {
  const int64_t first = (micro * cut.ranks + rank) * cut.rows();
  return {batch.x.narrow(0, first, cut.rows()), batch.y.narrow(0, first, cut.rows())};
}

inline AdamWOptions options_of(const Setting& setting, bool bias) {
  AdamWOptions options{.lr = kLr, .weight_decay = 0.1};
  if (setting.groups && bias) {
    options.lr = 10 * kLr;
    options.weight_decay = 0;
  }
  return options;
}

inline bool is_bias(const std::string& name) {
  return name.ends_with("bias");
}

inline torch::optim::AdamW plain_optimizer(NetImpl& net, const Setting& setting) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const bool bias : {false, true}) {
    std::vector<at::Tensor> members;
    for (const auto& item : net.named_parameters()) {
      if (is_bias(item.key()) == bias) {
        members.push_back(item.value());
      }
    }
    const AdamWOptions o = options_of(setting, bias);
    groups.emplace_back(members, std::make_unique<torch::optim::AdamWOptions>(
                                     torch::optim::AdamWOptions(o.lr)
                                         .betas({o.betas.first, o.betas.second})
                                         .eps(o.eps)
                                         .weight_decay(o.weight_decay)));
  }
  return torch::optim::AdamW(groups);
}

// One micro-batch through plain modules. In bf16 the modules are a rounded copy of the fp32 ones,
// whose gradients are added in fp32: what mixed precision means, written out.
inline double plain_micro_batch(Net& net, const Example& part, bool bfloat16) {
  Net computing = net;
  if (bfloat16) {
    computing = make_net();
    const at::NoGradGuard no_grad;
    for (const auto& item : net->named_parameters()) {
      computing->named_parameters()[item.key()].copy_(item.value());
    }
    computing->to(at::kBFloat16);
  }
  const at::Tensor x = bfloat16 ? part.x.to(at::kBFloat16) : part.x;
  const at::Tensor loss = sum_of_errors(computing(x), part.y) / kRows;
  loss.backward();
  if (bfloat16) {
    for (const auto& item : net->named_parameters()) {
      const at::Tensor gradient = computing->named_parameters()[item.key()].grad().to(at::kFloat);
      at::Tensor& sum = item.value().mutable_grad();
      sum = sum.defined() ? sum + gradient : gradient;
    }
  }
  return loss.item<double>();
}

inline Trace train_plain(const Cut& cut, const Setting& setting) {
  Net net = make_net();
  torch::optim::AdamW optimizer = plain_optimizer(*net, setting);
  Trace trace;
  for (int s = 0; s < kSteps; ++s) {
    Trace::Step& step = trace.steps.emplace_back();
    const Example batch = batch_of(s);
    optimizer.zero_grad();
    for (int part = 0; part < cut.ranks * cut.micro_batches; ++part) {
      step.loss += plain_micro_batch(net, part_of(batch, cut, part / cut.ranks, part % cut.ranks),
                                     setting.bfloat16);
    }
    const double factor =
        setting.gradient_divide_factor == 0 ? cut.ranks : setting.gradient_divide_factor;
    for (const auto& parameter : net->parameters()) {
      parameter.mutable_grad().div_(factor);
    }
    step.norm = torch::nn::utils::clip_grad_norm_(
        net->parameters(), setting.max_norm.value_or(std::numeric_limits<double>::infinity()),
        setting.norm_type);
    for (const auto& item : net->named_parameters()) {
      step.gradients[item.key()] = item.value().grad().clone();
    }
    optimizer.step();
    for (const auto& item : net->named_parameters()) {
      step.parameters[item.key()] = item.value().detach().clone();
    }
  }
  return trace;
}

// Puts this rank's part of each parameter's gradient or value where the other ranks put theirs.
inline void put_parts(const std::vector<ParameterShard>& shards, at::Tensor ParameterShard::*what,
                      std::map<std::string, at::Tensor>& wholes) {
  for (const ParameterShard& shard : shards) {
    wholes.at(shard.name)
        .view({-1})
        .narrow(0, shard.begin, shard.end - shard.begin)
        .copy_(shard.*what);
  }
}

inline void train_rank(World world, const Cut& cut, const Setting& setting, Trace& trace) {
  ShardOptions options = setting.options;
  options.strategy = setting.strategy;
  if (setting.bfloat16) {
    options.precision.param_dtype = at::kBFloat16;
  }
  auto model = fully_shard(make_net(), mesh_for(world, setting.strategy), options);
  if (setting.gradient_divide_factor != 0) {
    model.set_gradient_divide_factor(setting.gradient_divide_factor);
  }
  model.set_reshard_after_backward(!setting.keep_parameters);
  AdamW optimizer(model, options_of(setting, false), {{is_bias, options_of(setting, true)}});
  for (int s = 0; s < kSteps; ++s) {
    Trace::Step& step = trace.steps[static_cast<size_t>(s)];
    const Example batch = batch_of(s);
    optimizer.zero_grad();
    double loss_sum = 0;
    for (int micro = 0; micro < cut.micro_batches; ++micro) {
      const Example part = part_of(batch, cut, micro, world.rank());
      const bool last = micro == cut.micro_batches - 1;
      if (setting.strategy == Strategy::ShardOptimizer) {
        model.set_is_last_backward(last);
      } else {
        model.set_requires_gradient_sync(last || !setting.sync_last_only);
      }
      model.set_requires_all_reduce(last || !setting.all_reduce_last_only);
      const at::Tensor loss = sum_of_errors(model(part.x), part.y) / kRows;
      loss.backward();
      loss_sum += loss.item<double>();
    }
    world.all_reduce({&loss_sum, 1});
    const auto norm =
        clip_grad_norm(model, setting.max_norm.value_or(std::numeric_limits<double>::infinity()),
                       setting.norm_type)
            .item<double>();
    if (world.rank() == 0) {
      step.loss = loss_sum;
      step.norm = norm;
    }
    put_parts(model.parameter_shards(), &ParameterShard::gradient, step.gradients);
    optimizer.step();
    put_parts(model.parameter_shards(), &ParameterShard::value, step.parameters);
  }
}

inline Trace train_sharded(const Cut& cut, const Setting& setting,
                           const std::function<World(const World&)>& decorate = {}) {
  Trace trace;
  for (int s = 0; s < kSteps; ++s) {
    Trace::Step& step = trace.steps.emplace_back();
    for (const auto& item : make_net()->named_parameters()) {
      step.gradients[item.key()] = at::full_like(item.value(), std::nan("")).detach();
      step.parameters[item.key()] = at::full_like(item.value(), std::nan("")).detach();
    }
  }
  run_ranks(cut.ranks, [&](World world) {
    train_rank(decorate ? decorate(world) : world, cut, setting, trace);
  });
  return trace;
}

/// The largest differences of two runs.
struct Difference {
  double loss = 0;            ///< relative
  double norm = 0;            ///< relative
  double first_gradient = 0;  ///< ‖Δg‖ ÷ max(‖g‖, 1e-4 × global norm), at the first step
  double gradient = 0;        ///< the same over all steps
  double parameter = 0;       ///< ‖Δp‖ ÷ (learning rate × √n): in units of one full update
};

// NaN counts as infinitely different.
inline void raise(double& largest, double value) {
  largest = std::isnan(value) ? std::numeric_limits<double>::infinity() : std::max(largest, value);
}

inline Difference difference(const Trace& expected, const Trace& actual) {
  Difference worst;
  for (size_t s = 0; s < expected.steps.size(); ++s) {
    const Trace::Step& e = expected.steps[s];
    const Trace::Step& a = actual.steps[s];
    raise(worst.loss, std::abs(e.loss - a.loss) / e.loss);
    raise(worst.norm, std::abs(e.norm - a.norm) / e.norm);
    double squares = 0;
    for (const auto& [name, gradient] : e.gradients) {
      squares += gradient.to(at::kDouble).square().sum().item<double>();
    }
    for (const auto& [name, gradient] : e.gradients) {
      const auto wide = gradient.to(at::kDouble);
      const double distance = (wide - a.gradients.at(name)).norm().item<double>();
      const double ratio =
          distance / std::max(wide.norm().item<double>(), 1e-4 * std::sqrt(squares));
      raise(worst.gradient, ratio);
      if (s == 0) {
        raise(worst.first_gradient, ratio);
      }
    }
    for (const auto& [name, parameter] : e.parameters) {
      const auto wide = parameter.to(at::kDouble);
      raise(worst.parameter, (wide - a.parameters.at(name)).norm().item<double>() / kLr /
                                 std::sqrt(static_cast<double>(wide.numel())));
    }
  }
  return worst;
}

inline std::ostream& operator<<(std::ostream& out, const Difference& d) {
  return out << "loss " << d.loss << ", norm " << d.norm << ", gradients at step 1 "
             << d.first_gradient << ", over ten steps " << d.gradient << ", parameters "
             << d.parameter;
}

// fp32: what rounding alone may do. A parameter may be off by rounding of itself, and by what an
// update differs where a gradient is close to zero: far less than one update.
inline void expect_fp32_parity(const Trace& expected, const Cut& cut, const Setting& setting) {
  const Difference d = difference(expected, train_sharded(cut, setting));
  std::cout << "  " << cut.ranks << " ranks x " << cut.micro_batches << " micro-batches: " << d
            << "\n";
  EXPECT_LE(d.loss, 1e-6);
  EXPECT_LE(d.norm, 1e-6);
  EXPECT_LE(d.first_gradient, 2e-5);
  EXPECT_LE(d.gradient, 1e-4);
  EXPECT_LE(d.parameter, 1e-3);
}

inline const std::vector<Cut> kCuts = {{1, 1}, {1, 4}, {2, 1}, {2, 3},
                                       {3, 1}, {3, 2}, {4, 1}, {4, 3}};

}  // namespace sherd::test
