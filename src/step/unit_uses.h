#pragma once
// A unit's calls whose backward is under way or may still come.

#include <algorithm>
#include <mutex>
#include <vector>

namespace sherd::detail {

class UnitUse;

/// The graph that holds a call is freed by whatever thread lets go of it last: on a device that may
/// be autograd's own, when the host goes on already. So calls come and go under a lock.
class UnitUses {
 public:
  /// Once each.
  void add(UnitUse* use) {
    const std::lock_guard lock(mutex_);
    if (std::find(uses_.begin(), uses_.end(), use) == uses_.end()) {
      uses_.push_back(use);
    }
  }
  /// Whether it was there.
  bool remove(const UnitUse* use) {
    const std::lock_guard lock(mutex_);
    return std::erase(uses_, use) > 0;
  }
  [[nodiscard]] size_t size() const {
    const std::lock_guard lock(mutex_);
    return uses_.size();
  }
  [[nodiscard]] bool any_in_backward() const;
  /// Those whose backward is under way are no longer here.
  void remove_those_in_backward();
  /// The backward of none is under way.
  void leave_backward();
  /// The same, and none is here any more.
  void forget();

 private:
  mutable std::mutex mutex_;
  std::vector<UnitUse*> uses_;
};

}  // namespace sherd::detail
