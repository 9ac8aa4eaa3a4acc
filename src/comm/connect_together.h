#pragma once
// Ranks of a world that connect their devices: NCCL waits forever for a rank that cannot.

#include <chrono>
#include <functional>
#include <future>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/c10d.h"

namespace sherd::detail {

/// Connects the process groups of one rank now, and not in the first step. Collective.
void connect_groups(const ProcessGroups& groups, c10::Device device);

/// Connects the ranks of a world, or reports on all of them which rank could not and why.
class Connecting {
 public:
  struct Rank {
    int rank = 0;
    int size = 1;
    std::string met_over;  ///< "eth0 (10.0.0.2)": the interface of the rendezvous
    std::function<void()> limit_connections = [] {};  ///< of a new client of the store
  };
  /// `store` must accept further connections: on_all_ranks() opens one, since NCCL waits in
  /// `connect` for a value in the store, which holds up all other calls to that client.
  Connecting(c10::intrusive_ptr<c10d::Store> store, Rank rank, std::chrono::milliseconds timeout)
      : store_(std::move(store)), rank_(std::move(rank)), timeout_(timeout) {}

  /// Runs `connect`, which may be null, on a thread of its own. Collective over the world. Throws
  /// Error(Unavailable) on all ranks, naming the rank that could not connect. The thread may then
  /// stay in NCCL, which cannot be interrupted, so `connect` owns everything that it uses.
  void on_all_ranks(std::function<void()> connect);

 private:
  /// Waits for `connected` and for the other ranks, and looks for their failures.
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
