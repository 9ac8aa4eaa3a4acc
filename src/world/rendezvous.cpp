#include "world/rendezvous.h"

#include <algorithm>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "communicators/shared_memory/rank_place.h"
#include "sherd/error.h"
#include "world/network.h"
#include "world/sealed_store.h"

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;
using launch::RankEnvironment;

constexpr std::chrono::milliseconds kBetweenLooks{10};
// The delay with which a rank that has ended is noticed.
constexpr std::chrono::milliseconds kBetweenLooksAtProcesses{200};
// Ranks of one command usually start within less.
constexpr std::chrono::seconds kUntilAWarning{10};

std::string reason_of(const std::exception& error) {
  const auto* of_c10 = dynamic_cast<const c10::Error*>(&error);
  return of_c10 != nullptr ? of_c10->what_without_backtrace() : error.what();
}

/// One rank among those that come.
class Arrival {
 public:
  Arrival(const RankEnvironment& environment, c10d::Store& store, std::chrono::milliseconds timeout)
      : environment_(environment),
        store_(store),
        timeout_(timeout),
        deadline_(Clock::now() + timeout) {
    for (int rank = 0; rank < environment.world_size; ++rank) {
      keys_.push_back("came/" + std::to_string(rank));
    }
  }

  void wait_for_all() {
    const std::string here = place_.to_text();
    store_.set(keys_[static_cast<size_t>(environment_.rank)],
               std::vector<uint8_t>(here.begin(), here.end()));
    auto next_look = Clock::now() + kBetweenLooksAtProcesses;
    while (!store_.check(keys_)) {
      if (Clock::now() >= deadline_) {
        throw Error(ExitCode::PeerLost, meeting() + ": " + absent() +
                                            " did not come in time. Check that all ranks were "
                                            "started, with the same MASTER_ADDR and MASTER_PORT.");
      }
      warn_where_long();
      if (Clock::now() >= next_look) {
        look_at_processes();
        next_look = Clock::now() + kBetweenLooksAtProcesses;
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

  /// "rendezvous of rank 1 of 4 at host7:29500".
  [[nodiscard]] std::string meeting() const {
    return "rendezvous of rank " + std::to_string(environment_.rank) + " of " +
           std::to_string(environment_.world_size) + " at " + *environment_.master_address + ":" +
           std::to_string(*environment_.master_port);
  }

 private:
  [[nodiscard]] std::string absent() const {
    std::string names;
    for (size_t rank = 0; rank < keys_.size(); ++rank) {
      if (!store_.check({keys_[rank]})) {
        names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
      }
    }
    return names;
  }

  // A rank that was never started, or died before this point, looks like one that is late.
  void warn_where_long() {
    const Clock::duration patience = std::min<Clock::duration>(kUntilAWarning, timeout_ / 2);
    if (warned_ || Clock::now() < deadline_ - timeout_ + patience) {
      return;
    }
    warned_ = true;
    const auto left = std::chrono::ceil<std::chrono::seconds>(deadline_ - Clock::now());
    TORCH_WARN("[World] ", meeting(), ": ", absent(), " has not come yet. Waiting for up to ",
               left.count(), " s more.");
  }

  // Of other hosts nothing is known but that they came.
  void look_at_processes() const {
    for (size_t rank = 0; rank < keys_.size(); ++rank) {
      if (!store_.check({keys_[rank]})) {
        continue;
      }
      const std::vector<uint8_t> text = store_.get(keys_[rank]);
      const RankPlace place = RankPlace::from_text({text.begin(), text.end()});
      if (place.shares_host_with(place_) && !place.is_alive()) {
        throw Error(ExitCode::PeerLost, meeting() + ": rank " + std::to_string(rank) +
                                            " came and has ended before all had come. Its own "
                                            "message says why.");
      }
    }
  }

  const RankEnvironment& environment_;
  c10d::Store& store_;
  std::chrono::milliseconds timeout_;
  Clock::time_point deadline_;
  bool warned_ = false;
  RankPlace place_ = RankPlace::of_this_process();
  std::vector<std::string> keys_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> meet(const RankEnvironment& environment,
                                     std::chrono::milliseconds timeout, bool closes_store) {
  const std::string& host = *environment.master_address;
  c10d::TCPStoreOptions options;
  options.port = *environment.master_port;
  options.timeout = timeout;
  options.numWorkers = static_cast<size_t>(environment.world_size);
  options.isServer = environment.rank == 0 && !environment.agent_store;
  options.waitWorkers = false;  // waited for below, by name
  if (options.isServer) {
    // Without a socket of ours the store would listen on every interface.
    options.masterListenFd =
        environment.master_fd ? *environment.master_fd : listen_on(host, options.port);
  }
  try {
    auto store = c10::make_intrusive<SealedStore>(
        c10::make_intrusive<c10d::TCPStore>(host, options), environment.job_secret);
    Arrival(environment, *store, timeout).wait_for_all();
    if (options.isServer && closes_store) {
      set_admitting(*options.masterListenFd, false);
    }
    return store;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(
        ExitCode::PeerLost,
        "rendezvous: rank " + std::to_string(environment.rank) + " of " +
            std::to_string(environment.world_size) + " did not meet the others at " + host + ":" +
            std::to_string(options.port) + " (" + reason_of(error) +
            "). Check that all ranks were started, with the same MASTER_ADDR and MASTER_PORT.");
  }
}

}  // namespace sherd::detail
