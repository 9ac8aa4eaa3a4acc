#include "step/unit_uses.h"

#include "step/unit_use.h"

namespace sherd::detail {

bool UnitUses::any_in_backward() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(uses_.begin(), uses_.end(),
                     [](const UnitUse* use) { return use->in_backward(); });
}

void UnitUses::remove_those_in_backward() {
  const std::lock_guard lock(mutex_);
  std::erase_if(uses_, [](const UnitUse* use) { return use->in_backward(); });
}

void UnitUses::leave_backward() {
  const std::lock_guard lock(mutex_);
  for (UnitUse* use : uses_) {
    use->set_in_backward(false);
  }
}

void UnitUses::forget() {
  leave_backward();
  const std::lock_guard lock(mutex_);
  uses_.clear();
}

}  // namespace sherd::detail
