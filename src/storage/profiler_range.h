#pragma once
// A named range in the profiles of LibTorch, without its headers.

#include <memory>

namespace sherd::detail {

/// Shows up in LibTorch's profilers while it lives; costs nothing where none is on. `name` must
/// outlive it.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;  ///< null where no profiler is on
};

}  // namespace sherd::detail
