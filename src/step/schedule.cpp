#include "step/schedule.h"

#include <algorithm>
#include <utility>

namespace sherd::detail {

void Schedule::begin_iteration() {
  if (!begun_.empty()) {
    expected_ = std::exchange(begun_, {});
  }
  ended_.clear();
  position_ = 0;
  in_step_ = false;
}

void Schedule::begin_unit(int unit) {
  begun_.push_back(unit);
  const auto rest = expected_.begin() + static_cast<std::ptrdiff_t>(position_);
  const auto found = std::find(rest, expected_.end(), unit);
  in_step_ = found != expected_.end();
  if (in_step_) {
    position_ = static_cast<size_t>(found - expected_.begin()) + 1;
  }
}

bool Schedule::has_begun(int unit) const {
  return std::find(begun_.begin(), begun_.end(), unit) != begun_.end();
}

void Schedule::end_unit(int unit) {
  ended_.push_back(unit);
}

std::vector<int> Schedule::ahead_in_forward() const {
  std::vector<int> targets;
  for (size_t next = position_;
       in_step_ && next < expected_.size() && targets.size() < static_cast<size_t>(depth_);
       ++next) {
    if (expected_[next] != 0) {
      targets.push_back(expected_[next]);
    }
  }
  return targets;
}

std::vector<int> Schedule::ahead_in_backward(int unit) {
  std::vector<int> targets;
  size_t position = cursor_;
  while (position > 0 && ended_[position - 1] != unit) {
    --position;
  }
  if (position == 0) {
    return targets;  // backward runs in another order than forward
  }
  cursor_ = position - 1;
  for (size_t next = cursor_; next > 0 && targets.size() < static_cast<size_t>(depth_); --next) {
    if (ended_[next - 1] != 0) {
      targets.push_back(ended_[next - 1]);
    }
  }
  return targets;
}

}  // namespace sherd::detail
