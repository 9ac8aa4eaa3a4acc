#pragma once
// Which units to gather ahead, from the order in which they ran.

#include <cstddef>
#include <vector>

namespace sherd::detail {

/// Records the units of each forward and proposes what to gather next: in forward what followed in
/// the last iteration, in backward the reverse of this one. A wrong guess costs memory, never
/// correctness. The root (unit 0) is recorded but never proposed: it is gathered by its own call.
class Schedule {
 public:
  explicit Schedule(int depth) : depth_(depth) {}

  /// A new forward starts with nothing outstanding: what was recorded becomes the order to expect.
  void begin_iteration();
  void record_forward(int unit);
  /// Units to gather while the one recorded last runs forward.
  [[nodiscard]] std::vector<int> ahead_in_forward() const;

  void begin_backward() { cursor_ = current_.size(); }
  /// Units to gather while `unit` runs backward.
  [[nodiscard]] std::vector<int> ahead_in_backward(int unit);

  [[nodiscard]] int depth() const { return depth_; }

 private:
  int depth_;
  std::vector<int> expected_;
  std::vector<int> current_;
  size_t cursor_ = 0;
};

}  // namespace sherd::detail
