#pragma once

#include <functional>

namespace app {

/// Reads the command line. Returns the verb that it asks for; for a faulty command line, or a
/// question for help, prints the message and returns what gives the exit code. Throws sherd::Error
/// for an unknown command.
[[nodiscard]] std::function<int()> verb_of(int argc, char** argv);

}  // namespace app
