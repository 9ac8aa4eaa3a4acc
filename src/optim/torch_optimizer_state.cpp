#include <algorithm>
#include <utility>

#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "sherd/error.h"
#include "sherd/optim.h"

namespace sherd {

namespace {

using ParamState = torch::optim::OptimizerParamState;

// The state that one of LibTorch's optimizers keeps for a parameter.
struct StateKind {
  using Fields = std::map<std::string, at::Tensor*>;
  Fields (*fields)(ParamState&);
  int64_t* (*step)(ParamState&);  // null: it counts no steps
  std::unique_ptr<ParamState> (*make)();
  bool is_made_at_start = false;  // rather than with the first update
};

template <class State>
std::unique_ptr<ParamState> make_state() {
  return std::make_unique<State>();
}

template <class State>
int64_t* step_of(ParamState& state) {
  return &static_cast<State&>(state).step();
}

template <class State>
StateKind::Fields adam_fields(ParamState& state) {
  auto& adam = static_cast<State&>(state);
  return {{"exp_avg", &adam.exp_avg()},
          {"exp_avg_sq", &adam.exp_avg_sq()},
          {"max_exp_avg_sq", &adam.max_exp_avg_sq()}};
}

StateKind::Fields sgd_fields(ParamState& state) {
  return {{"momentum_buffer", &static_cast<torch::optim::SGDParamState&>(state).momentum_buffer()}};
}

StateKind::Fields rmsprop_fields(ParamState& state) {
  auto& rmsprop = static_cast<torch::optim::RMSpropParamState&>(state);
  return {{"square_avg", &rmsprop.square_avg()},
          {"momentum_buffer", &rmsprop.momentum_buffer()},
          {"grad_avg", &rmsprop.grad_avg()}};
}

StateKind::Fields adagrad_fields(ParamState& state) {
  return {{"sum", &static_cast<torch::optim::AdagradParamState&>(state).sum()}};
}

StateKind kind_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;  // its AdamW is qualified: sherd has one, too
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) {
    return {adam_fields<AdamWParamState>, step_of<AdamWParamState>, make_state<AdamWParamState>};
  }
  if (dynamic_cast<const Adam*>(&optimizer) != nullptr) {
    return {adam_fields<AdamParamState>, step_of<AdamParamState>, make_state<AdamParamState>};
  }
  if (dynamic_cast<const SGD*>(&optimizer) != nullptr) {
    return {sgd_fields, nullptr, make_state<SGDParamState>};
  }
  if (dynamic_cast<const RMSprop*>(&optimizer) != nullptr) {
    return {rmsprop_fields, step_of<RMSpropParamState>, make_state<RMSpropParamState>};
  }
  if (dynamic_cast<const Adagrad*>(&optimizer) != nullptr) {
    return {adagrad_fields, step_of<AdagradParamState>, make_state<AdagradParamState>, true};
  }
  throw Error(ExitCode::Usage,
              "[TorchOptimizerState] the optimizer is none of LibTorch's Adam, AdamW, SGD, RMSprop "
              "and Adagrad: derive one of your own from CheckpointableOptimizer.");
}

}  // namespace

struct TorchOptimizerState::Impl {
  torch::optim::Optimizer& optimizer;
  StateKind kind;
  torch::OrderedDict<std::string, at::Tensor> parameters;  ///< those that it updates

  [[nodiscard]] ParamState* state_of(const at::Tensor& parameter) const {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    return found == optimizer.state().end() ? nullptr : found->second.get();
  }
};

TorchOptimizerState::TorchOptimizerState(ShardedModule& model, torch::optim::Optimizer& optimizer)
    : impl_(
          new Impl{optimizer, kind_of(optimizer), torch::OrderedDict<std::string, at::Tensor>()}) {
  const auto updates = [&](const at::Tensor& parameter) {
    const auto& groups = optimizer.param_groups();
    return std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
      return std::any_of(group.params().begin(), group.params().end(),
                         [&](const at::Tensor& other) { return other.is_same(parameter); });
    });
  };
  for (const auto& item : optim_parameters(model)) {
    if (updates(item.value())) {
      impl_->parameters.insert(item.key(), item.value());
    }
  }
}

TorchOptimizerState::~TorchOptimizerState() = default;
TorchOptimizerState::TorchOptimizerState(TorchOptimizerState&&) noexcept = default;
TorchOptimizerState& TorchOptimizerState::operator=(TorchOptimizerState&&) noexcept = default;

int64_t TorchOptimizerState::steps_done() const {
  int64_t most = 0;
  for (const OptimizerShard& shard : state_shards()) {
    most = std::max(most, shard.steps);
  }
  return most;
}

std::vector<OptimizerShard> TorchOptimizerState::state_shards() const {
  std::vector<OptimizerShard> shards;
  for (const auto& item : impl_->parameters) {
    ParamState* state = impl_->state_of(item.value());
    if (state == nullptr) {
      continue;
    }
    OptimizerShard& shard = shards.emplace_back(OptimizerShard{item.key(), {}, 0});
    for (const auto& [kind, tensor] : impl_->kind.fields(*state)) {
      if (tensor->defined()) {
        shard.tensors[kind] = tensor->detach();
      }
    }
    shard.steps = impl_->kind.step == nullptr ? 0 : *impl_->kind.step(*state);
  }
  return shards;
}

std::vector<OptimizerShard> TorchOptimizerState::shards_to_fill(const OptimizerKinds& kinds) {
  const std::unique_ptr<ParamState> known = impl_->kind.make();
  const StateKind::Fields fields = impl_->kind.fields(*known);
  std::vector<OptimizerShard> shards;
  for (const auto& item : impl_->parameters) {
    const auto saved = kinds.find(item.key());
    if (saved == kinds.end() || saved->second.empty()) {
      continue;  // never updated
    }
    OptimizerShard& shard = shards.emplace_back(OptimizerShard{item.key(), {}, 0});
    for (const std::string& kind : saved->second) {
      if (fields.count(kind) == 0) {
        throw Error(ExitCode::BadData, "its optimizer was another one: it has '" + kind +
                                           "' of parameter '" + item.key() +
                                           "'. Load it with an optimizer of the kind that it was "
                                           "saved with, or without one.");
      }
      shard.tensors[kind] = at::zeros_like(item.value().detach());
    }
  }
  return shards;
}

void TorchOptimizerState::restore(int64_t /*steps_done*/,
                                  const std::vector<OptimizerShard>& shards) {
  auto& states = impl_->optimizer.state();
  for (const auto& item : impl_->parameters) {
    const auto shard = std::find_if(shards.begin(), shards.end(), [&](const OptimizerShard& other) {
      return other.parameter == item.key();
    });
    if (shard == shards.end()) {
      if (!impl_->kind.is_made_at_start) {
        states.erase(item.value().unsafeGetTensorImpl());
      }
      continue;
    }
    std::unique_ptr<ParamState> state = impl_->kind.make();
    const StateKind::Fields fields = impl_->kind.fields(*state);
    for (const auto& [kind, tensor] : shard->tensors) {
      *fields.at(kind) = tensor;
    }
    if (impl_->kind.step != nullptr) {
      *impl_->kind.step(*state) = shard->steps;
    }
    states[item.value().unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace sherd
