#pragma once
// Ranks of a world that connect devices: NCCL waits for ever for a rank that cannot.

#include <chrono>
#include <functional>
#include <future>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/c10d.h"

namespace sherd::detail {

/// Connects the process groups of one rank now, and not in the first step: makes their
/// communicators, and exchanges a few bytes over each. Returns when all ranks of the groups do.
void connect_groups(const ProcessGroups& groups, c10::Device device);

/// Has the ranks of a world connect, or all of them say which rank could not and why.
class Connecting {
 public:
  struct Rank {
    int rank = 0;
    int size = 1;
    std::string met_over;                             ///< "eth0 (10.0.0.2)": how the ranks met
    std::function<void()> limit_connections = [] {};  ///< of a store's that was connected anew
  };
  /// `store` must accept further connections: together() opens one, since a thread that waits for a
  /// value in a TCPStore holds up all other calls to that client, and NCCL waits so in `connect`.
  Connecting(c10::intrusive_ptr<c10d::Store> store, Rank rank, std::chrono::milliseconds timeout)
      : store_(std::move(store)), rank_(std::move(rank)), timeout_(timeout) {}

  /// Runs `connect` on a thread of its own and returns when all ranks of the world have connected;
  /// null: this rank has nothing to connect. Collective. Throws Error(Unavailable), which names the
  /// rank that could not, on all ranks; then the thread may stay behind in NCCL, which nothing
  /// ends, so `connect` owns what it uses.
  void together(std::function<void()> connect);

 private:
  /// Until it is over, looks for what others say.
  void await(std::future<void> connected, const std::string& counter) const;
  [[noreturn]] void fail(const std::string& why) const;
  [[noreturn]] void fail_with_others(const std::string& told) const;

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Store> own_;  ///< the same through a connection of its own
  Rank rank_;
  std::chrono::milliseconds timeout_;
  int times_ = 0;
};

}  // namespace sherd::detail
