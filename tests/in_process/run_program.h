#pragma once
// The program without a process: verbs are called in the test's own, and ranks are its threads.
// What such a test cannot see is whatever belongs to a process or its launcher: signals, sockets,
// terminals, memory, and how a dying rank ends the others.

#include <optional>
#include <string>
#include <utility>

#include "tests/support/training.h"

namespace sherd::test {

// run_program() is here: `train` on the ranks of `launch -n` or `-n`, any other verb on one. It
// throws std::invalid_argument for what needs processes.

/// When the ranks of a run are asked to stop.
struct Stop {
  std::string text;              ///< once standard output has a line with it; never if empty
  std::optional<int> rank = {};  ///< this one alone; else all, as by SIGTERM to their launcher
  int asked_before = 0;          ///< how often a rank has then asked in vain
};

/// Runs `train`, which is asked to stop. Ended::seconds count from there.
[[nodiscard]] Ended run_until(const Stop& stop, const Arguments& arguments);

/// `train` on two ranks that were given other words, and what each of them printed.
[[nodiscard]] std::pair<Ended, Ended> run_unlike_ranks(const Arguments& zero, const Arguments& one);

}  // namespace sherd::test
