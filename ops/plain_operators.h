#pragma once

namespace sherd::ops {

/// While one lives, operators called on its thread compute with plain LibTorch calls instead of
/// their own loops: the reference that those are compared with. What a forward chose, its backward
/// keeps.
class PlainOperators {
 public:
  PlainOperators();
  PlainOperators(const PlainOperators&) = delete;
  PlainOperators& operator=(const PlainOperators&) = delete;
  ~PlainOperators();

  /// Whether one lives on this thread.
  [[nodiscard]] static bool active();
};

}  // namespace sherd::ops
