#pragma once

namespace app {

/// Reads the command line and runs its verb. Returns the exit code of the process; prints a message
/// for a faulty command line. Does not catch errors of the verbs.
int run_command(int argc, char** argv);

}  // namespace app
