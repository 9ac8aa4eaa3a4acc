#pragma once
// Which units to gather ahead, from the order in which they ran.

#include <cstddef>
#include <vector>

namespace sherd::detail {

/// Records the units of each forward and proposes what to gather next: in forward what followed in
/// the last iteration, in backward the reverse of the order in which this one's units ended. A
/// wrong guess costs memory, never correctness. The root (unit 0) is recorded but never proposed:
/// it is gathered by its own call.
class Schedule {
 public:
  /// `first_order`: what to expect of the first forward.
  explicit Schedule(int depth, std::vector<int> first_order = {})
      : depth_(depth), expected_(std::move(first_order)) {}

  /// A new forward starts with nothing outstanding: what was recorded becomes the order to expect.
  void begin_iteration();
  void begin_unit(int unit);
  [[nodiscard]] bool has_begun(int unit) const;
  void end_unit(int unit);
  /// Units to gather while the one begun last runs forward. A unit that was not expected, or not
  /// yet, is passed over; the next expected one brings the two orders together again.
  [[nodiscard]] std::vector<int> ahead_in_forward() const;

  void begin_backward() { cursor_ = ended_.size(); }
  /// Units to gather while `unit` runs backward.
  [[nodiscard]] std::vector<int> ahead_in_backward(int unit);

  /// The units of the last forward, in the order in which they began.
  [[nodiscard]] const std::vector<int>& begun() const { return begun_; }
  [[nodiscard]] int depth() const { return depth_; }
  /// Units as the last forward called them; before the first, as they are expected.
  [[nodiscard]] const std::vector<int>& order() const {
    return begun_.empty() ? expected_ : begun_;
  }

 private:
  int depth_;
  std::vector<int> expected_;
  std::vector<int> begun_;
  std::vector<int> ended_;
  size_t position_ = 0;  ///< in expected_: what follows the unit begun last
  bool in_step_ = false;
  size_t cursor_ = 0;  ///< in ended_: what has not run backward yet lies before it
};

}  // namespace sherd::detail
