#pragma once
// The end of a process without destructors.

#include <string>

#include "sherd/error.h"

namespace sherd::launch {

/// From another thread than the main one: prints a line on standard error and ends the process at
/// once, without destructors: the main thread may be in the middle of anything. The reader of
/// standard error has one second to take it.
[[noreturn]] void end_process(const std::string& line, ExitCode code);

/// From the main thread, where another one uses what the end of the program would destroy: writes
/// what is buffered for files, standard output and standard error, and ends the process.
[[noreturn]] void end_process(int code);

}  // namespace sherd::launch
