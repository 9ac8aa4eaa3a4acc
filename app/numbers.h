#pragma once
// What the value of a flag may be. CLI11's own checks show the largest double in their messages.

#include <CLI/CLI.hpp>

namespace app {

/// "must be a number above 0".
[[nodiscard]] CLI::Validator above_zero();

/// "must be a number of at least 0".
[[nodiscard]] CLI::Validator at_least_zero();

}  // namespace app
