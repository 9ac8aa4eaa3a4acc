#pragma once
// How autograd reaches the unit of a parameter: through a hook that the parameter carries.

#include <memory>
#include <utility>

#include <torch/csrc/autograd/function_hook.h>

#include "sherd/unit.h"
#include "step/step.h"

namespace sherd::detail {

/// Moves a gradient that has been accumulated the stock way into the unit's reduce buffer. It lives
/// in the parameter's autograd metadata, which may outlive the sharded model.
class ParameterHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  ParameterHook(std::weak_ptr<Step> step, UnitState& unit, size_t parameter)
      : step_(std::move(step)), unit_(unit), parameter_(parameter) {}

  void operator()(const at::Tensor& tensor) override;

  /// Null where there is no place for gradients.
  [[nodiscard]] UnitState* unit() const;
  [[nodiscard]] size_t parameter() const { return parameter_; }

 private:
  std::weak_ptr<Step> step_;  ///< keeps the unit alive while it lives
  UnitState& unit_;
  size_t parameter_;
};

/// Gives each parameter of the unit its hook, and metadata that refuse to hold its gradient.
void install_parameter_hooks(const ShardedUnit& unit);

/// Null where the parameter has none.
[[nodiscard]] ParameterHook* hook_of(const at::Tensor& parameter);

/// Whether the parameter belongs to a sharded model, or did while that lived.
[[nodiscard]] bool is_sharded(const at::Tensor& parameter);

}  // namespace sherd::detail
