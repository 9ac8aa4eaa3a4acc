#pragma once
// What the program says and returns where a verb fails.

#include <string>

#include "sherd/error.h"

namespace app {

struct Failure {
  sherd::ExitCode code = sherd::ExitCode::Internal;
  std::string message;  ///< empty: another rank reports it
};

/// The exception that is being handled, as a failure of the program.
[[nodiscard]] Failure current_failure();

}  // namespace app
