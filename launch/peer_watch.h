#pragma once
// A thread that ends a rank when a peer or the launcher is lost.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "launch/pipes.h"
#include "launch/rank_environment.h"

namespace sherd::launch {

/// Prefix of `sherd launch`'s message with the seconds that ranks have to stop.
inline constexpr std::string_view kStopWithin = "stop within ";
/// Prefix of a rank's message to `sherd launch` with the seconds that it expects a save to take.
inline constexpr std::string_view kSaveTakes = "save takes ";

/// A thread of this object reads the connection to `sherd launch`. A line that begins with
/// kStopWithin is a deadline (stop_within()). Any other line means that a peer is lost: the thread
/// prints it and ends the process at once with exit code 76, without destructors, since the main
/// thread may wait for the dead peer in a collective. A closed pipe means that the launcher is gone
/// and ends the process likewise. For other launchers the thread watches the parent process;
/// without a launcher it watches nothing.
class PeerWatch {
 public:
  /// Takes over `environment.supervisor_fd`. Throws `Error` (Usage) if it is neither pipe nor
  /// socket.
  explicit PeerWatch(const RankEnvironment& environment);
  /// Stops watching; the process lives on.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// For a rank that failed because of another one, which reports the error: a lost peer no longer
  /// ends this process. Blocks until a peer is lost, at most for `most`, so that launchers see the
  /// other rank end first.
  void await_loss(std::chrono::milliseconds most);
  /// From now on a lost peer does not end this process, which is failing and still reports why.
  void outlive_peers();
  /// Time that the launcher gave this rank to stop; none before its message. Any thread.
  [[nodiscard]] std::optional<std::chrono::seconds> stop_within();
  /// Tells `sherd launch`, if it started this rank, how long a save is expected to take.
  void tell_save_seconds(double seconds) const;

 private:
  void take_over_news(int fd);
  void watch();
  void take_deadlines(std::string& news);
  [[noreturn]] void end_rank(const std::string& what) const;

  int rank_;
  FileDescriptor news_;
  FileDescriptor parent_;  // readable once it has ended
  Pipe stop_;              // closing its write end ends the thread
  std::mutex mutex_;       // of the next three
  bool awaited_ = false;
  bool lost_ = false;
  std::optional<std::chrono::seconds> stop_within_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace sherd::launch
