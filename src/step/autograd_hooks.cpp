// How autograd reaches a sharded parameter and its unit.

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "sherd/custom.h"
#include "sherd/error.h"
#include "sherd/unit.h"
#include "step/step.h"

namespace sherd::detail {

namespace {

using torch::autograd::impl::get_autograd_meta;
using torch::autograd::impl::try_get_grad_accumulator;

using NodesToRun = std::unordered_map<torch::autograd::Node*, torch::autograd::GraphTask::ExecInfo>;

// Null if it runs all of them, or if there is none.
const NodesToRun* nodes_to_run() {
  const NodesToRun* nodes = torch::autograd::get_current_graph_task_exec_info();
  return nodes == nullptr || nodes->empty() ? nullptr : nodes;
}

bool accumulates_gradient(const at::Tensor& parameter) {
  const NodesToRun* nodes = nodes_to_run();
  if (nodes == nullptr) {
    return true;
  }
  const auto found = nodes->find(try_get_grad_accumulator(parameter).get());
  return found != nodes->end() && found->second.needed_;
}

// Its `.grad` is empty outside of backward.
class ShardedMeta final : public torch::autograd::AutogradMeta {
 public:
  explicit ShardedMeta(std::string parameter) : parameter_(std::move(parameter)) {}

  torch::autograd::Variable& mutable_grad() override {
    check_in_backward();
    return grad_;
  }
  [[nodiscard]] const torch::autograd::Variable& grad() const override {
    check_in_backward();
    return grad_;
  }

 private:
  void check_in_backward() const {
    if (!inside_backward()) {
      throw Error(ExitCode::Usage,
                  "[grad] parameter '" + parameter_ +
                      "' is sharded, and its gradient is not on the module: use sherd::AdamW, "
                      "sherd::clip_grad_norm and ShardedModule::zero_grad() in place of "
                      "torch::optim, torch::nn::utils and Module::zero_grad(), and read "
                      "ParameterShard::gradient.");
    }
  }

  std::string parameter_;
};

// Moves a gradient that autograd has accumulated into the unit's reduce buffer. It lives in the
// parameter's autograd metadata, which may outlive the sharded model.
class ParameterHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  ParameterHook(std::weak_ptr<Step> step, UnitState& unit, size_t parameter)
      : step_(std::move(step)), unit_(unit), parameter_(parameter) {}

  void operator()(const at::Tensor& tensor) override;

  // Null if the parameter has no place for gradients.
  [[nodiscard]] UnitState* unit() const {
    const bool has_place = !step_.expired() && unit_.parameters()[parameter_].trainable;
    return has_place ? &unit_ : nullptr;
  }
  [[nodiscard]] size_t parameter() const { return parameter_; }

 private:
  std::weak_ptr<Step> step_;  // keeps the unit alive while it lives
  UnitState& unit_;
  size_t parameter_;
};

void ParameterHook::operator()(const at::Tensor& tensor) {
  const std::shared_ptr<Step> step = step_.lock();
  if (step == nullptr) {
    return;
  }
  // Taken first: what an exception left there would be added to the next gradient.
  const at::Tensor gradient = std::exchange(tensor.mutable_grad(), at::Tensor());
  step->begin_backward(step);
  // An operator that writes its slot returns no gradient; autograd calls this nevertheless.
  if (!gradient.defined()) {
    return;
  }
  const UnitParameter& parameter = unit_.parameters()[parameter_];
  if (!parameter.trainable) {
    throw Error(ExitCode::Usage,
                "[backward] parameter '" + parameter.name +
                    "' got a gradient, but was frozen when fully_shard() was called and has no "
                    "place for one: shard it trainable, and freeze it afterwards.");
  }
  const at::NoGradGuard no_grad;
  if (gradient.is_sparse() || unit_.gradient_written(parameter_)) {
    unit_.begin_gradient_add(parameter_).add_(gradient);
  } else {
    const at::Tensor place = unit_.begin_gradient_write(parameter_);
    place.copy_(gradient);
    unit_.end_gradient_write(parameter_, place);
  }
}

// Null if the parameter has none.
ParameterHook* hook_of(const at::Tensor& parameter) {
  if (get_autograd_meta(parameter) == nullptr) {
    return nullptr;
  }
  return dynamic_cast<ParameterHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

// With hooks on saved tensors, autograd gives back a parameter as another tensor over the same
// memory, with the same accumulator.
ParameterHook* hook_behind(const at::Tensor& parameter) {
  if (ParameterHook* const hook = hook_of(parameter)) {
    return hook;
  }
  const auto node = try_get_grad_accumulator(parameter);
  const auto* const accumulator = dynamic_cast<torch::autograd::AccumulateGrad*>(node.get());
  return accumulator == nullptr ? nullptr : hook_of(accumulator->variable);
}

}  // namespace

void install_parameter_hooks(const ShardedUnit& unit) {
  const auto& parameters = unit.state->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    auto meta = std::make_unique<ShardedMeta>(parameters[i].name);
    if (auto* old = get_autograd_meta(tensor)) {
      meta->requires_grad_ = old->requires_grad_;
      meta->hooks_ = std::move(old->hooks_);
      meta->cpp_hooks_list_ = std::move(old->cpp_hooks_list_);
    }
    tensor.unsafeGetTensorImpl()->set_autograd_meta(std::move(meta));
    torch::autograd::impl::set_post_acc_grad_hooks(
        tensor, std::make_unique<ParameterHook>(unit.step, *unit.state, i));
  }
}

bool is_sharded(const at::Tensor& parameter) {
  return hook_of(parameter) != nullptr;
}

bool inside_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

bool accumulates_gradients(const UnitState& unit) {
  return accumulates_everywhere() ||
         std::ranges::any_of(unit.parameters(), [](const UnitParameter& parameter) {
           return accumulates_gradient(parameter.tensor);
         });
}

bool accumulates_everywhere() {
  return nodes_to_run() == nullptr;
}

}  // namespace sherd::detail

namespace sherd {

GradSlot GradSlot::of(const at::Tensor& parameter) {
  const auto* hook = parameter.requires_grad() ? detail::hook_behind(parameter) : nullptr;
  if (hook == nullptr || !detail::accumulates_gradient(parameter)) {
    return {nullptr, 0};
  }
  return {hook->unit(), static_cast<int64_t>(hook->parameter())};
}

at::Tensor GradSlot::begin_write() const {
  return unit_->begin_gradient_write(static_cast<size_t>(parameter_));
}

void GradSlot::end_write(const at::Tensor& target) const {
  unit_->end_gradient_write(static_cast<size_t>(parameter_), target);
}

at::Tensor GradSlot::begin_add() const {
  return unit_->begin_gradient_add(static_cast<size_t>(parameter_));
}

}  // namespace sherd
