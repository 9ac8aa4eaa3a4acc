#pragma once
// The message and exit code of a verb that fails.

#include <string>

#include "sherd/error.h"

namespace app {

struct Failure {
  sherd::ExitCode code = sherd::ExitCode::Internal;
  std::string message;  ///< empty: another rank reports it
};

/// The exception that is being handled, as a failure of the program.
[[nodiscard]] Failure current_failure();

/// Prints the message to standard error, if there is one. Returns the exit code.
[[nodiscard]] int report(const Failure& failure);

}  // namespace app
