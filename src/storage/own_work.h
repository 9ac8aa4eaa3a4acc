#pragma once
// One exception type: out of memory, and broken invariants, as Error.

#include <exception>
#include <string>
#include <utility>

namespace sherd::detail {

/// What `error` says, without LibTorch's stack trace.
[[nodiscard]] std::string message_of(const std::exception& error);

/// Called in a handler: rethrows what it handles; a failed allocation, of LibTorch or the C++
/// library, as Error(OutOfMemory), and a failed assertion as Error(Internal).
[[noreturn]] void throw_on();

/// Runs the library's own work, whose exceptions pass throw_on(). Most pass unchanged, since they
/// may come from a caller's code inside (a hook, a policy, a back end).
template <class Fn>
decltype(auto) own_work(Fn&& fn) {
  try {
    return std::forward<Fn>(fn)();
  } catch (...) {
    throw_on();
  }
}

/// Throws Error(Internal), which names `broken` and asks for a report, unless `holds`.
void check_invariant(bool holds, const char* broken);

}  // namespace sherd::detail
