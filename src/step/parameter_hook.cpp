#include "step/parameter_hook.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include "sherd/error.h"
#include "step/sharded_meta.h"

namespace sherd::detail {

void ParameterHook::operator()(const at::Tensor& tensor) {
  // An operator that writes its slot returns no gradient; autograd calls this nevertheless.
  if (!tensor.grad().defined() || step_.expired()) {
    return;
  }
  // Taken first: what an exception left there would be added to the next gradient.
  const at::Tensor gradient = std::exchange(tensor.mutable_grad(), at::Tensor());
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

UnitState* ParameterHook::unit() const {
  const bool has_place = !step_.expired() && unit_.parameters()[parameter_].trainable;
  return has_place ? &unit_ : nullptr;
}

void install_parameter_hooks(const ShardedUnit& unit) {
  const auto& parameters = unit.state->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    install_sharded_meta(parameters[i].tensor, parameters[i].name);
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameters[i].tensor, std::make_unique<ParameterHook>(unit.step, *unit.state, i));
  }
}

ParameterHook* hook_of(const at::Tensor& parameter) {
  if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr) {
    return nullptr;
  }
  return dynamic_cast<ParameterHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

bool is_sharded(const at::Tensor& parameter) {
  return hook_of(parameter) != nullptr;
}

}  // namespace sherd::detail
