#include <algorithm>
#include <type_traits>
#include <utility>

#include <ATen/ops/zeros_like.h>
#pragma push_macro("SHERD_NARROW_TORCH")  // include/sherd/narrow/README.md
#undef SHERD_NARROW_TORCH
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#pragma pop_macro("SHERD_NARROW_TORCH")

#include "sherd/error.h"
#include "sherd/optim.h"
#include "step/step.h"

namespace sherd {

namespace {

using torch::optim::AdagradParamState, torch::optim::AdamParamState, torch::optim::AdamWParamState,
    torch::optim::RMSpropParamState, torch::optim::SGDParamState;
using ParamState = torch::optim::OptimizerParamState;

// What one of LibTorch's optimizers keeps for a parameter.
struct Fields {
  std::map<std::string, at::Tensor*> tensors;
  int64_t* steps = nullptr;  // null if it does not count them
};

Fields fields_of(SGDParamState& state) {
  return {{{"momentum_buffer", &state.momentum_buffer()}}};
}
Fields fields_of(RMSpropParamState& state) {
  return {{{"square_avg", &state.square_avg()},
           {"momentum_buffer", &state.momentum_buffer()},
           {"grad_avg", &state.grad_avg()}},
          &state.step()};
}
Fields fields_of(AdagradParamState& state) {
  return {{{"sum", &state.sum()}}, &state.step()};
}
template <class AdamState>
Fields fields_of(AdamState& state) {
  return {{{"exp_avg", &state.exp_avg()},
           {"exp_avg_sq", &state.exp_avg_sq()},
           {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
          &state.step()};
}

struct StateKind {
  Fields (*fields)(ParamState&);
  std::unique_ptr<ParamState> (*make)();
  bool is_made_at_start;  // rather than with the first update
};

template <class State>
StateKind kind_with() {
  return {[](ParamState& base) { return fields_of(static_cast<State&>(base)); },
          []() -> std::unique_ptr<ParamState> { return std::make_unique<State>(); },
          std::is_same_v<State, AdagradParamState>};
}

template <class Optimizer>
bool is_a(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const Optimizer*>(&optimizer) != nullptr;
}

StateKind kind_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& [is_it, kind] :
       {std::pair(is_a<torch::optim::AdamW>(optimizer), kind_with<AdamWParamState>()),
        std::pair(is_a<torch::optim::Adam>(optimizer), kind_with<AdamParamState>()),
        std::pair(is_a<torch::optim::SGD>(optimizer), kind_with<SGDParamState>()),
        std::pair(is_a<torch::optim::RMSprop>(optimizer), kind_with<RMSpropParamState>()),
        std::pair(is_a<torch::optim::Adagrad>(optimizer), kind_with<AdagradParamState>())}) {
    if (is_it) {
      return kind;
    }
  }
  throw Error(ExitCode::Usage,
              "[TorchOptimizerState] the optimizer is none of LibTorch's Adam, AdamW, SGD, RMSprop "
              "and Adagrad: derive one of your own from CheckpointableOptimizer.");
}

}  // namespace

struct TorchOptimizerState::Impl {
  torch::optim::Optimizer& optimizer;
  StateKind kind;
  torch::OrderedDict<std::string, at::Tensor> parameters;  ///< updated by it

  [[nodiscard]] ParamState* state_of(const at::Tensor& parameter) const {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    return found == optimizer.state().end() ? nullptr : found->second.get();
  }
};

torch::OrderedDict<std::string, at::Tensor> optim_parameters(ShardedModule& model) {
  detail::require_all_sharded(detail::engine_of(model).model);
  detail::Step& step = detail::engine_of(model).step;
  step.require_between_steps("optim_parameters");
  step.check_not_torn("optim_parameters");
  return step.hand_out_masters();
}

TorchOptimizerState::TorchOptimizerState(ShardedModule& model, torch::optim::Optimizer& optimizer)
    : impl_(
          new Impl{optimizer, kind_of(optimizer), torch::OrderedDict<std::string, at::Tensor>()}) {
  const auto updates = [&](const at::Tensor& parameter) {
    return std::ranges::any_of(optimizer.param_groups(), [&](const auto& group) {
      return std::ranges::any_of(group.params(),
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
    const Fields fields = impl_->kind.fields(*state);
    OptimizerShard& shard = shards.emplace_back(OptimizerShard{item.key(), {}, 0});
    for (const auto& [kind, tensor] : fields.tensors) {
      if (tensor->defined()) {
        shard.tensors[kind] = tensor->detach();
      }
    }
    shard.steps = fields.steps == nullptr ? 0 : *fields.steps;
  }
  return shards;
}

std::vector<OptimizerShard> TorchOptimizerState::shards_to_fill(const OptimizerKinds& kinds) {
  const std::unique_ptr<ParamState> known = impl_->kind.make();
  const Fields fields = impl_->kind.fields(*known);
  std::vector<OptimizerShard> shards;
  for (const auto& item : impl_->parameters) {
    const auto saved = kinds.find(item.key());
    if (saved == kinds.end() || saved->second.empty()) {
      continue;  // never updated
    }
    OptimizerShard& shard = shards.emplace_back(OptimizerShard{item.key(), {}, 0});
    for (const std::string& kind : saved->second) {
      if (!fields.tensors.contains(kind)) {
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
    const auto shard = std::ranges::find(shards, item.key(), &OptimizerShard::parameter);
    if (shard == shards.end()) {
      if (!impl_->kind.is_made_at_start) {
        states.erase(item.value().unsafeGetTensorImpl());
      }
      continue;
    }
    std::unique_ptr<ParamState> state = impl_->kind.make();
    const Fields fields = impl_->kind.fields(*state);
    for (const auto& [kind, tensor] : shard->tensors) {
      *fields.tensors.at(kind) = tensor;
    }
    if (fields.steps != nullptr) {
      *fields.steps = shard->steps;
    }
    states[item.value().unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace sherd
