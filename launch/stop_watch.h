#pragma once
// A thread that ends a rank which was asked to stop and waits for others without end.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "launch/pipes.h"

namespace sherd::launch {

/// Ranks stop together, which they cannot agree on where one of them is gone or silent. While it
/// lives, a thread checks whether this process was asked to stop (StopRequest) and has since then
/// waited for longer than a grace time in the same exchange: it then prints a message and ends the
/// process at once with exit code 75, since the same command goes on from the last checkpoint.
class StopWatch {
 public:
  /// What the process waits for, and since when.
  struct Waiting {
    std::string what;
    std::chrono::steady_clock::time_point since;
  };
  /// `waiting` is called on the thread; none where the process waits for nobody.
  StopWatch(int rank, std::chrono::milliseconds grace,
            std::function<std::optional<Waiting>()> waiting);
  /// Stops watching; the process lives on.
  ~StopWatch();
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

 private:
  void watch() const;
  void look() const;

  int rank_;
  std::chrono::milliseconds grace_;
  std::function<std::optional<Waiting>()> waiting_;
  Pipe stop_;  // closing its write end ends the thread
  std::thread thread_;
};

}  // namespace sherd::launch
