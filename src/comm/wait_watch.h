#pragma once
// A thread that ends waits for messages of Gloo when no rank makes progress.

#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/progress_board.h"
#include "launch/pipes.h"

namespace sherd::detail {

/// A receive or send of Gloo waits until a fixed time, also while this process is suspended, and
/// then closes its connections. So it waits without a limit here, and this thread aborts it when
/// the patience is over.
class WaitWatch {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  WaitWatch();
  ~WaitWatch();
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;

  /// Waits for all of them. Throws what a work throws, or Error(Hang).
  void await(const std::vector<Work>& works, const Patience& patience);

 private:
  void watch();

  std::mutex mutex_;                  // of the next two
  std::optional<Patience> patience_;  // of the wait under way
  const std::vector<Work>* works_ = nullptr;
  launch::Pipe stop_;  // closing its write end ends the thread
  std::thread thread_;
};

}  // namespace sherd::detail
