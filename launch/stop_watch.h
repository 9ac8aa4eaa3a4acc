#pragma once
// A thread that ends a rank at the deadline that its launcher has set for a stop.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "launch/pipes.h"

namespace sherd::launch {

/// A rank that was asked to stop finishes its step and saves, for as long as that takes. Only a
/// deadline of the launcher ends it before: a thread then prints what the rank waited for and what
/// is lost, shortly before the launcher kills the rank, and ends the process.
class StopWatch {
 public:
  /// What the watch asks, from its own thread.
  struct Questions {
    /// How long this rank has to stop, from when the launcher said so; none before.
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
