#pragma once
// Short training runs of the real program, as processes.

#include <string>
#include <utility>

#include "launch/loopback_socket.h"
#include "tests/support/run_program.h"
#include "tests/support/training.h"

namespace sherd::test {

/// Two ranks that meet without a launcher to give them the same words and variables.
inline std::pair<Ended, Ended> run_unlike_ranks(const Arguments& zero, const Arguments& one,
                                                const Arguments& variables_of_one = {}) {
  const std::string port = std::to_string(launch::listen_on_loopback({}).port);
  const auto environment = [&](const std::string& rank) {
    return Arguments{"RANK=" + rank, "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                     "MASTER_PORT=" + port};
  };
  Program second(one, environment("1") + variables_of_one);
  Program first(zero, environment("0"));
  return {first.finish(), second.finish()};
}

}  // namespace sherd::test
