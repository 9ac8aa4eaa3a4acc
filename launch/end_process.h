#pragma once
// The end of a process from another thread than its main one.

#include <string>

#include "sherd/error.h"

namespace sherd::launch {

/// Prints a line on standard error and ends the process at once, without destructors: the main
/// thread may be in the middle of anything. The reader of standard error has one second to take it.
[[noreturn]] void end_process(const std::string& line, ExitCode code);

}  // namespace sherd::launch
