#pragma once
// The library's own work: one exception type for it, and its ranges in profiles.

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace sherd::detail {

/// Returns what `error` says, without LibTorch's stack trace.
[[nodiscard]] std::string message_of(const std::exception& error);

/// Called in a handler. Rethrows the exception: a failed allocation, of LibTorch or the C++
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

/// Runs work of a destructor or a handler. Its exceptions are lost: a device that fails here fails
/// later calls too.
template <class Fn>
void quietly(Fn&& fn) {
  try {
    std::forward<Fn>(fn)();
  } catch (...) {  // NOLINT(bugprone-empty-catch): of callers' code too
  }
}

/// Throws Error(Internal), which names `broken` and asks for a report, unless `holds`.
void check_invariant(bool holds, const char* broken);

/// Returns a range of LibTorch's profilers, which lasts while the result lives; null if none is on.
/// `name` must outlive it.
[[nodiscard]] std::shared_ptr<void> profiler_range(const char* name);

}  // namespace sherd::detail
