#pragma once

namespace app {

/// Reads the command line and runs the verb that it names. Returns the process's exit code, after
/// a word to the user where the command line is at fault. Errors of the verbs pass.
int run_command(int argc, char** argv);

}  // namespace app
