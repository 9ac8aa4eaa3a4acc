#pragma once
// A rank's ear for the loss of a peer.

#include <thread>

#include "launch/pipes.h"
#include "launch/rank_environment.h"

namespace sherd::launch {

/// While it lives, a thread reads the pipe from `sherd launch`. If a line comes, a peer is lost:
/// the thread prints it and ends the process at once with exit code 76, without destructors, since
/// the main thread may wait for the dead peer in a collective. If the pipe closes, the launcher is
/// gone: the same. Does nothing where another launcher started the rank.
class PeerWatch {
 public:
  /// Takes over `environment.supervisor_fd`. Throws `Error` (Usage) if it is no pipe.
  explicit PeerWatch(const RankEnvironment& environment);
  /// Stops watching; the process lives on.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  void watch() const;

  int rank_;
  FileDescriptor news_;
  Pipe stop_;  // closing its write end ends the thread
  std::thread thread_;
};

}  // namespace sherd::launch
