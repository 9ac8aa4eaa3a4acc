#include "schedule.h"

#include <utility>

namespace sherd::detail {

void Schedule::begin_iteration() {
  if (!current_.empty()) {
    expected_ = std::exchange(current_, {});
  }
}

void Schedule::record_forward(int unit) {
  current_.push_back(unit);
}

std::vector<int> Schedule::ahead_in_forward() const {
  std::vector<int> targets;
  const size_t position = current_.size() - 1;
  if (position >= expected_.size() || expected_[position] != current_[position]) {
    return targets;
  }
  for (size_t next = position + 1;
       next < expected_.size() && targets.size() < static_cast<size_t>(depth_); ++next) {
    if (expected_[next] != 0) {
      targets.push_back(expected_[next]);
    }
  }
  return targets;
}

std::vector<int> Schedule::ahead_in_backward(int unit) {
  std::vector<int> targets;
  size_t position = cursor_;
  while (position > 0 && current_[position - 1] != unit) {
    --position;
  }
  if (position == 0) {
    return targets;  // recorded earlier than what ran already: backward goes another way than
                     // forward
  }
  cursor_ = unit == 0 ? cursor_ : position - 1;
  for (size_t next = cursor_; next > 0 && targets.size() < static_cast<size_t>(depth_); --next) {
    if (current_[next - 1] != 0) {
      targets.push_back(current_[next - 1]);
    }
  }
  return targets;
}

}  // namespace sherd::detail
