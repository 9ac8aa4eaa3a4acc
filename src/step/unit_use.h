#pragma once
// One call of a unit that a backward may follow.

#include <memory>
#include <utility>

#include "step/step.h"
#include "unit/unit_state.h"

namespace sherd::detail {

/// Held by the call's part of autograd's graph: when that is freed without a backward, the step
/// stops waiting for it.
class UnitUse {
 public:
  UnitUse(std::shared_ptr<Step> step, UnitState& unit) : step_(std::move(step)), unit_(unit) {}
  ~UnitUse() { step_->drop_use(*this); }
  UnitUse(const UnitUse&) = delete;
  UnitUse& operator=(const UnitUse&) = delete;

  [[nodiscard]] const std::shared_ptr<Step>& step() const { return step_; }
  [[nodiscard]] UnitState& unit() const { return unit_; }
  /// Whether its backward is under way, and needs the parameters.
  [[nodiscard]] bool in_backward() const { return in_backward_; }
  void set_in_backward(bool in_backward) { in_backward_ = in_backward; }
  /// What it has saved on the host; null where nothing goes there.
  [[nodiscard]] SavedByCall* saved() const { return saved_.get(); }
  void set_saved(std::shared_ptr<SavedByCall> saved) { saved_ = std::move(saved); }

 private:
  std::shared_ptr<Step> step_;  ///< keeps the unit alive
  UnitState& unit_;
  bool in_backward_ = false;
  std::shared_ptr<SavedByCall> saved_;
};

}  // namespace sherd::detail
