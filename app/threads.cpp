#include "app/threads.h"

#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/core.h>

#include "sherd/error.h"

namespace app {

namespace {

// OpenMP ends the process if it cannot start a thread, so all of them are started once beforehand.
// Unnecessary if there is a core for each.
void check_that_threads_start(std::int64_t count) {
  std::latch end(1);
  std::vector<std::jthread> threads;
  try {
    while (static_cast<std::int64_t>(threads.size()) < count) {
      threads.emplace_back([&end] { end.wait(); });
    }
  } catch (const std::system_error& error) {
    const std::size_t started = threads.size();
    end.count_down();
    threads.clear();
    throw sherd::Error(sherd::ExitCode::Unavailable,
                       fmt::format("cannot start {} threads, only {}: {}. Give fewer threads, or "
                                   "raise the limits on processes and memory (ulimit -u, ulimit "
                                   "-v, the container's pids limit).",
                                   count, started, error.what()));
  }
  end.count_down();
}

}  // namespace

void use_threads(std::int64_t count) {
  if (count > static_cast<std::int64_t>(std::thread::hardware_concurrency())) {
    check_that_threads_start(count);
  }
  at::set_num_threads(static_cast<int>(count));
}

}  // namespace app
