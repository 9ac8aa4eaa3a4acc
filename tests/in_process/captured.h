#pragma once
// Code of the program, run in place of a process: in its environment and folder, its outputs read.

#include <functional>

#include "tests/support/ended.h"

namespace sherd::test {

/// Runs `work`, which returns an exit code, with PATH, one thread and `variables` ("NAME=value") as
/// its environment, in the project's folder. Returns what it printed. If `work` throws, or a signal
/// ends the process, what it printed goes to standard error.
[[nodiscard]] Ended captured(const Arguments& variables, const std::function<int()>& work);

}  // namespace sherd::test
