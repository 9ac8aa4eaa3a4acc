#pragma once
// A run of the program, whether as a process or in the test's own.

#include <string>
#include <vector>

namespace sherd::test {

using Arguments = std::vector<std::string>;

/// How a program ended, and what it and all that it started printed.
struct Ended {
  int code = -1;  ///< exit status, or 128 + signal
  std::string out;
  std::string err;
  double seconds = 0;  ///< from the start, or from the last signal sent, to the end of all output
  bool in_time = true;
};

/// Both lists, one after the other.
inline Arguments operator+(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

/// Runs `sherd` with these arguments to its end, in the project's folder, with one thread and no
/// environment but PATH and `variables` ("NAME=value"): as a process (tests/support/run_program.h),
/// or in the test's own (tests/in_process/run_program.h).
Ended run_program(const Arguments& arguments, const Arguments& variables = {});

}  // namespace sherd::test
