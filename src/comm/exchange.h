#pragma once
// Exchanges between ranks that fail with an error: where each rank was, and why.

#include <chrono>
#include <csignal>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/progress_board.h"
#include "sherd/error.h"
#include "sherd/world.h"

namespace sherd::detail {

/// Returns NCCL's own last words in what a process group threw, on one line; empty if none.
[[nodiscard]] std::string nccl_reason(const std::string& thrown);
/// Returns a sentence: the network interfaces that NCCL was told to use.
[[nodiscard]] std::string nccl_interfaces();
/// A sentence: how to get more information from NCCL.
inline constexpr const char* kNcclTellsMore = "NCCL_DEBUG=INFO has NCCL say what it tries.";

/// Blocks SIGPIPE in this thread and those that it starts, so that a write to a closed socket is an
/// error: Gloo writes without MSG_NOSIGNAL. Python programs ignore the signal.
class WithoutSigpipe {
 public:
  WithoutSigpipe();
  ~WithoutSigpipe();
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t before_ = {};      // the thread's mask
  bool was_pending_ = false;  // before it was blocked
};

/// How an exchange fails.
enum class Failure {
  Lost,      ///< a connection broke, or a message was malformed: a rank is gone or out of step
  TimedOut,  ///< all ranks are connected, and one is silent
};

/// A failed exchange does not say which rank is missing. So each rank whose exchange fails writes a
/// note to the store that says where it was, and reads the notes of its group.
struct FailureNotes {
  c10::intrusive_ptr<c10d::Store> store;
  RankGroup group;
  int rank = 0;                                       ///< of the world
  std::chrono::milliseconds for_others{0};            ///< limit of the wait for the notes of others
  std::shared_ptr<CurrentWait> waits;                 ///< what this rank waits for
  std::shared_ptr<ProgressBoard> progress = nullptr;  ///< of all ranks; null if there is none
  std::chrono::milliseconds timeout{0};               ///< of a wait without progress
  /// Limits the time of each exchange with the store from now on.
  std::function<void(std::chrono::milliseconds)> limit_store = [](std::chrono::milliseconds) {};

  /// The notes of a group, as sentences.
  struct Report {
    std::string missing = {};    ///< ranks without a note, no sentence
    std::string store = {};      ///< if the store does not answer
    std::string last_work = {};  ///< one per missing rank that had reported work
    std::string elsewhere = {};  ///< one per rank that waited in something else
    std::string causes = {};     ///< one per other rank that noted a cause
    Failure failure;             ///< TimedOut if this rank or another timed out
    [[nodiscard]] std::string text() const;
  };
  /// Notes that this rank failed at `what` because of `cause`, and returns what others noted.
  [[nodiscard]] Report report(const std::string& what, Failure failure,
                              const std::string& cause = "") const;
  /// Notes that this rank lost another at `what`, for the others to read. Does not wait.
  void note(const std::string& what) const;
  /// Returns a wait that begins now.
  [[nodiscard]] Patience patience() const { return {progress.get(), timeout}; }
};

/// Blocks on rank 0, in whose process the store ends, until all ranks have called it, for at most
/// five seconds. Ranks call it before they throw a fault that they have read in the store.
void wait_until_all_know(c10d::Store& store, const std::string& counter, int rank, int size);

/// Returns the error of an exchange that failed with `error`.
[[nodiscard]] Error failed_exchange(const FailureNotes& notes, const std::string& what,
                                    const std::exception& error);

/// Runs `fn`. Throws Error if it fails: PeerLost if another rank is gone, Hang if it is silent
/// until the timeout. `what` names the exchange, in the error and on this rank's board.
template <class Fn>
auto exchange(const FailureNotes& notes, const std::string& what, Fn&& fn) {
  const WithoutSigpipe errors_not_signals;
  const CurrentWait::Entry waiting(*notes.waits, what);
  try {
    return fn();
  } catch (const std::exception& error) {
    throw failed_exchange(notes, what, error);
  }
}

}  // namespace sherd::detail
