#pragma once
// A place to go on at, on a stack of its own. Without the system call that ucontext makes for each
// change, and without what the address sanitizer does to a whole stack there.

#include <cstddef>

namespace sherd::emulator {

class Context {
 public:
  /// Goes on at the beginning of `entry`, which must not return, on this stack.
  void prepare(char* stack, std::size_t bytes, void (*entry)());
  /// Leaves `from` here, until somebody changes to it, and goes on at `to`.
  static void change(Context& from, Context& to);

 private:
  void* stack_pointer_ = nullptr;
};

}  // namespace sherd::emulator
