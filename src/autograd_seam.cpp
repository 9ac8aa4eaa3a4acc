#include "autograd_seam.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "runtime.h"
#include "sherd/grad_slot.h"
#include "sherd/unit.h"

namespace sherd::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Lives in the parameter's autograd metadata, which may outlive the sharded model.
class ParameterHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  ParameterHook(const std::shared_ptr<Runtime>& runtime, UnitState& unit, size_t parameter)
      : runtime_(runtime), unit_(unit), parameter_(parameter) {}

  void operator()(const at::Tensor& tensor) override {
    // An operator that writes its slot returns no gradient; autograd calls this all the same.
    if (!tensor.grad().defined() || runtime_.expired()) {
      return;
    }
    const UnitParameter& parameter = unit_.parameters()[parameter_];
    if (!parameter.trainable) {
      tensor.mutable_grad().reset();
      throw Error(ExitCode::Usage,
                  "[backward] parameter '" + parameter.name +
                      "' got a gradient, but was frozen when fully_shard() was called and has no "
                      "place for one: shard it trainable, and freeze it afterwards.");
    }
    const at::NoGradGuard no_grad;
    write(unit_.gradient_slot(parameter_), tensor.grad());
    tensor.mutable_grad().reset();
  }

  /// Null where there is no place for gradients.
  [[nodiscard]] UnitState* unit() const {
    const bool has_place = !runtime_.expired() && unit_.parameters()[parameter_].trainable;
    return has_place ? &unit_ : nullptr;
  }
  [[nodiscard]] size_t parameter() const { return parameter_; }

 private:
  void write(at::Tensor slot, const at::Tensor& gradient) {
    const bool written = unit_.gradient_written(parameter_);
    if (!written && gradient.is_sparse()) {
      slot.zero_();  // rows that it does not hold
    }
    if (written || gradient.is_sparse()) {
      slot.add_(gradient);
    } else {
      slot.copy_(gradient);
    }
    unit_.mark_gradient_written(parameter_);
  }

  std::weak_ptr<Runtime> runtime_;
  UnitState& unit_;
  size_t parameter_;
};

// Answers for a sharded parameter outside of backward, where its gradient is the shard's: code that
// looks for one (torch::optim, clip_grad_norm_, Module::zero_grad) would find none, and do nothing
// in silence.
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
    if (torch::autograd::get_current_graph_task_id() == -1) {
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

void answer_for(const UnitParameter& parameter) {
  auto meta = std::make_unique<ShardedMeta>(parameter.name);
  if (auto* old = torch::autograd::impl::get_autograd_meta(parameter.tensor)) {
    meta->requires_grad_ = old->requires_grad_;
    meta->hooks_ = std::move(old->hooks_);
    meta->cpp_hooks_list_ = std::move(old->cpp_hooks_list_);
  }
  parameter.tensor.unsafeGetTensorImpl()->set_autograd_meta(std::move(meta));
}

ParameterHook* hook_of(const at::Tensor& parameter) {
  if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr) {
    return nullptr;
  }
  return dynamic_cast<ParameterHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

// A use on its way through autograd's graph, which it keeps alive.
struct UseCapsule : torch::CustomClassHolder {
  explicit UseCapsule(std::shared_ptr<UnitUse> held) : use(std::move(held)) {}
  std::shared_ptr<UnitUse> use;
};

struct InputGate : torch::autograd::Function<InputGate> {
  // A TensorList, since autograd does not look for variables inside a vector.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<UseCapsule>& use,
                               at::TensorList inputs) {
    context->saved_data["use"] = c10::IValue::make_capsule(use);
    context->set_materialize_grads(false);  // what got no gradient passes none on
    return inputs.vec();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["use"].toCapsule();
    UnitUse* use = static_cast<UseCapsule&>(*capsule).use.get();
    use->unit().finish_use(use);
    gradients.insert(gradients.begin(), at::Tensor());  // for the capsule argument
    return gradients;
  }
};

using ExecInfo = std::unordered_map<torch::autograd::Node*, torch::autograd::GraphTask::ExecInfo>;

// Which nodes the backward under way runs; null where it runs all of them, or there is none.
const ExecInfo* nodes_to_run() {
  const ExecInfo* info = torch::autograd::get_current_graph_task_exec_info();
  return info == nullptr || info->empty() ? nullptr : info;
}

bool accumulates_into(const at::Tensor& parameter, const ExecInfo& info) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  const auto found = info.find(node.get());
  return found != info.end() && found->second.needed_;
}

}  // namespace

bool accumulates_gradients(const UnitState& unit) {
  const ExecInfo* info = nodes_to_run();
  const auto& parameters = unit.parameters();
  return info == nullptr ||
         std::any_of(parameters.begin(), parameters.end(), [&](const UnitParameter& parameter) {
           return accumulates_into(parameter.tensor, *info);
         });
}

bool accumulates_everywhere() {
  return nodes_to_run() == nullptr;
}

bool is_sharded(const at::Tensor& parameter) {
  return hook_of(parameter) != nullptr;
}

void install_gradient_hook(const std::shared_ptr<Runtime>& runtime, UnitState& unit,
                           size_t parameter) {
  answer_for(unit.parameters()[parameter]);
  torch::autograd::impl::set_post_acc_grad_hooks(
      unit.parameters()[parameter].tensor,
      std::make_unique<ParameterHook>(runtime, unit, parameter));
}

void refuse_to_convert(const UnitState* unit) {
  if (unit != nullptr) {
    throw Error(ExitCode::Usage, "[to] unit '" + unit->name() +
                                     "' is sharded, and its parameters cannot be converted or "
                                     "moved: call to() before fully_shard(), or choose the dtype "
                                     "with Precision::param_dtype.");
  }
}

void refuse_to_clone(const UnitState* unit) {
  if (unit != nullptr) {
    throw Error(ExitCode::Usage, "[clone] unit '" + unit->name() +
                                     "' is sharded, and cannot be copied: build the model once "
                                     "more and shard that, or clone it before fully_shard().");
  }
}

ForwardScope::ForwardScope(UnitState& unit) : unit_(unit) {
  unit_.pre_forward();
}

ForwardScope::~ForwardScope() {
  if (left_) {
    return;
  }
  try {
    unit_.leave_forward();
    unit_.runtime().forward_failed();
  } catch (
      ...) {  // NOLINT(bugprone-empty-catch): the exception on its way tells what went wrong first
  }
}

void ForwardScope::cast_inputs(const TensorList& inputs) {
  const auto dtype = unit_.compute_dtype();
  const c10::Device device = unit_.runtime().mesh().world().device();
  for (at::Tensor* input : inputs) {
    if (input->defined() && input->device() != device) {
      *input = input->to(device);
    }
    if (unit_.settings().precision.cast_forward_inputs && dtype && input->defined() &&
        input->is_floating_point()) {
      *input = input->to(*dtype);
    }
  }
}

void ForwardScope::enter(const TensorList& inputs) {
  if (!at::GradMode::is_enabled()) {
    return;
  }
  use_ = std::make_shared<UnitUse>(unit_.runtime().shared_from_this(), unit_);
  variable_list differentiable;
  TensorList places;
  for (at::Tensor* input : inputs) {
    if (input->defined() && input->requires_grad()) {
      differentiable.push_back(*input);
      places.push_back(input);
    }
  }
  if (differentiable.empty()) {
    return;
  }
  const auto capsule = c10::make_intrusive<UseCapsule>(use_);
  const variable_list gated = InputGate::apply(capsule, at::TensorList(differentiable));
  for (size_t i = 0; i < places.size(); ++i) {
    *places[i] = gated[i];
  }
}

void ForwardScope::leave(const TensorList& outputs) {
  bool needs_backward = false;
  for (at::Tensor* output : outputs) {
    if (output->defined() && use_ != nullptr && output->requires_grad()) {
      needs_backward = true;
      output->register_hook(
          [use = use_](const at::Tensor&) { use->unit().pre_backward(use.get()); });
    }
  }
  cast_outputs(outputs);
  left_ = true;
  unit_.post_forward(needs_backward ? use_.get() : nullptr);
}

void ForwardScope::cast_outputs(const TensorList& outputs) const {
  const auto& dtype = unit_.settings().precision.output_dtype;
  for (at::Tensor* output : outputs) {
    if (dtype && output->defined() && output->is_floating_point()) {
      *output = output->to(*dtype);
    }
  }
}

}  // namespace sherd::detail

namespace sherd {

GradSlot GradSlot::of(const at::Tensor& parameter) {
  const auto* hook = parameter.requires_grad() ? detail::hook_of(parameter) : nullptr;
  const auto* info = detail::nodes_to_run();
  if (hook == nullptr || (info != nullptr && !detail::accumulates_into(parameter, *info))) {
    return {nullptr, 0};
  }
  return {hook->unit(), static_cast<int64_t>(hook->parameter())};
}

at::Tensor GradSlot::begin_write() const {
  const auto parameter = static_cast<size_t>(parameter_);
  at::Tensor slot = unit_->gradient_slot(parameter);
  return unit_->gradient_written(parameter) ? at::empty_like(slot) : slot;
}

void GradSlot::end_write(const at::Tensor& target) const {
  const auto parameter = static_cast<size_t>(parameter_);
  if (unit_->gradient_written(parameter)) {
    unit_->gradient_slot(parameter).add_(target);
  } else {
    unit_->mark_gradient_written(parameter);
  }
}

at::Tensor GradSlot::begin_add() const {
  const auto parameter = static_cast<size_t>(parameter_);
  at::Tensor slot = unit_->gradient_slot(parameter);
  if (!unit_->gradient_written(parameter)) {
    slot.zero_();
    unit_->mark_gradient_written(parameter);
  }
  return slot;
}

}  // namespace sherd
