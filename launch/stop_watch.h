#pragma once
// A thread that ends a rank at the deadline that its launcher has set for a stop.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "launch/pipes.h"

namespace sherd::launch {

/// After a stop request a rank finishes its step and saves, however long that takes. Only a
/// deadline of the launcher ends it earlier: shortly before the launcher would kill the rank, a
/// thread prints what the rank waits for and what is lost, and ends the process.
class StopWatch {
 public:
  /// Questions of the watch, asked from its own thread.
  struct Questions {
    /// Time that the launcher gave this rank to stop; none before its message.
    std::function<std::optional<std::chrono::seconds>()> deadline;
    /// What the rank waits for, if it waits for others.
    std::function<std::optional<std::string>()> waiting;
    /// What is lost if the process ends now, for example "steps 13 to 17"; empty: nothing.
    std::function<std::string()> lost;
  };
  StopWatch(int rank, Questions questions);
  /// Stops watching; the process lives on.
  ~StopWatch();
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

 private:
  void watch() const;
  [[noreturn]] void end(std::chrono::seconds deadline) const;

  int rank_;
  Questions questions_;
  Pipe stop_;  // closing its write end ends the thread
  std::thread thread_;
};

}  // namespace sherd::launch
