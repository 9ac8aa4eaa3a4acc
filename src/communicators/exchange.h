#pragma once
// What process groups throw, as an error with a name.

#include <exception>
#include <string>

#include <c10/util/Exception.h>

#include "communicators/roster.h"
#include "sherd/error.h"

namespace sherd::detail {

/// A failed exchange means that another rank is gone or elsewhere; what it was for is added by the
/// caller.
template <class Fn>
auto exchange(const Roster& roster, const std::string& what, Fn&& fn) {
  const auto lost = [&](const std::string& why) {
    std::string message = what + " failed: " + why + "." + roster.report(what);
    message +=
        " Another rank has ended, cannot be reached, or does something else; its own message says "
        "why.";
    return Error(ExitCode::PeerLost, message);
  };
  try {
    return fn();
  } catch (const c10::Error& error) {
    throw lost(error.what_without_backtrace());
  } catch (const std::exception& error) {  // Gloo's own exceptions, whose headers the wheel lacks
    throw lost(error.what());
  }
}

}  // namespace sherd::detail
