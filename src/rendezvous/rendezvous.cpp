#include "rendezvous/rendezvous.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/exchange.h"
#include "comm/rank_place.h"
#include "launch/random_hex.h"
#include "rendezvous/network.h"
#include "rendezvous/sealed_store.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;
using launch::RankEnvironment;

// "rank 3", "ranks 3, 5-9"; empty for none.
std::string ranks_text(const std::vector<size_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const size_t first = i;
    while (i + 1 < ranks.size() && ranks[i + 1] == ranks[i] + 1) {
      ++i;
    }
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[first]);
    if (i > first) {
      text += "-" + std::to_string(ranks[i]);
    }
  }
  return ranks.empty() ? "" : (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

constexpr std::chrono::milliseconds kBetweenLooks{10};
// Doubled after each try.
constexpr std::chrono::milliseconds kAfterFirstTry{20};
constexpr std::chrono::milliseconds kBetweenTries{1000};
// The delay with which a rank that has ended is noticed.
constexpr std::chrono::milliseconds kBetweenLooksAtProcesses{200};
// Ranks of one command usually start within less.
constexpr std::chrono::seconds kUntilAWarning{4};
constexpr std::chrono::seconds kUntilNoAnswer{2};

Clock::duration patience_of(std::chrono::milliseconds timeout) {
  return std::min<Clock::duration>(kUntilAWarning, timeout / 2);
}

long long seconds_until(Clock::time_point deadline) {
  return std::chrono::ceil<std::chrono::seconds>(deadline - Clock::now()).count();
}

constexpr const char* kFingerprint = "sherd/secret/";

std::string version_text(const Version& version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
         std::to_string(version.patch);
}

/// Names one start of the ranks in a store that outlives them, as torchrun's agent's does; agents
/// of several hosts may count starts differently. Rank 0 draws a name and answers each rank that
/// asks, with the rank's own random word, so that nobody takes an old answer for its own.
class Generation {
 public:
  Generation(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size)
      : store_(std::move(store)),
        rank_(rank),
        word_(launch::random_hex(16)),
        answered_(static_cast<size_t>(world_size)),
        name_(rank == 0 ? word_ : "") {
    if (rank != 0) {
      store_->set(key("asks", rank), word_);
    }
  }

  /// Call it until all have met. Returns the name, empty until rank 0 has answered.
  const std::string& poll() {
    if (rank_ == 0) {
      answer_all();
    } else if (const std::string answer = read(key("answer", rank_)); answer.starts_with(word_)) {
      name_ = answer.substr(word_.size());
    }
    return name_;
  }

 private:
  static std::string key(const char* what, int rank) {
    return std::string("round/") + what + "/" + std::to_string(rank);
  }
  // Empty where nobody has written.
  [[nodiscard]] std::string read(const std::string& key) {
    return store_->check({key}) ? store_->get_to_str(key) : "";
  }
  void answer_all() {
    for (int rank = 1; rank < static_cast<int>(answered_.size()); ++rank) {
      std::string& last = answered_[static_cast<size_t>(rank)];
      if (const std::string word = read(key("asks", rank)); word != last) {
        store_->set(key("answer", rank), word + name_);
        last = word;
      }
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::string word_;                   ///< this rank's
  std::vector<std::string> answered_;  ///< on rank 0: words of the others
  std::string name_;
};

/// One rank of those that arrive.
class Arrival {
 public:
  Arrival(const RankEnvironment& environment, Rendezvous place, std::chrono::milliseconds timeout,
          std::string version)
      : environment_(environment),
        address_(std::move(place.address)),
        common_(std::move(place.store)),
        timeout_(timeout),
        version_(std::move(version)),
        deadline_(Clock::now() + timeout) {
    common_->set(kFingerprint + std::to_string(environment.rank),
                 SealedStore::fingerprint_of(environment.job_secret));
    for (int rank = 0; rank < environment.world_size; ++rank) {
      keys_.push_back("came/" + std::to_string(rank));
    }
    if (environment.agent_store) {
      generation_.emplace(c10::make_intrusive<SealedStore>(common_, environment.job_secret),
                          environment.rank, environment.world_size);
    } else {
      enter(environment.job_secret);
    }
  }

  /// Returns the store in which they have met, which nobody else has used.
  c10::intrusive_ptr<c10d::Store> wait_for_all() {
    auto next_look = Clock::now() + kBetweenLooksAtProcesses;
    while (!all_came()) {
      if (Clock::now() >= deadline_) {
        throw Error(ExitCode::PeerLost, meeting() + ": " + absent() +
                                            " did not come in time. Check that all ranks were "
                                            "started, with the same MASTER_ADDR and MASTER_PORT." +
                                            reachable_by_others());
      }
      warn_where_long();
      if (Clock::now() >= next_look) {
        look_at_processes();
        next_look = Clock::now() + kBetweenLooksAtProcesses;
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
    check_versions();
    return store_;
  }

  /// "rendezvous of rank 1 of 4 at host7:29500".
  [[nodiscard]] std::string meeting() const {
    return "rendezvous of rank " + std::to_string(environment_.rank) + " of " +
           std::to_string(environment_.world_size) + " at " + *environment_.master_address + ":" +
           std::to_string(*environment_.master_port);
  }

 private:
  void enter(const std::string& secret) {
    store_ = c10::make_intrusive<SealedStore>(common_, secret);
    store_->set("version/" + std::to_string(environment_.rank), version_);
    store_->set(keys_[static_cast<size_t>(environment_.rank)], place_.to_text());
  }

  // Rank 0 compares, for all.
  void check_versions() const {
    std::string difference;
    for (size_t rank = 0; environment_.rank == 0 && rank < keys_.size(); ++rank) {
      const std::string version = store_->get_to_str("version/" + std::to_string(rank));
      if (version != version_ && difference.empty()) {
        difference = "rank " + std::to_string(rank) + " is Sherd " + version + ", and rank 0 is " +
                     version_ + ". Start all ranks with the same version.";
      }
    }
    if (environment_.rank == 0) {
      store_->set("versions", difference);
    } else {
      difference = store_->get_to_str("versions");
    }
    if (!difference.empty()) {
      wait_until_all_know(*store_, "versions/known", environment_.rank, environment_.world_size);
      throw Error(ExitCode::RanksDisagree, meeting() + ": " + difference);
    }
  }

  bool all_came() {
    if (generation_) {
      if (const std::string& name = generation_->poll(); name != name_) {
        name_ = name;
        enter(environment_.job_secret + "/" + name);
      }
    }
    return store_ && store_->check(keys_);
  }

  [[nodiscard]] std::string absent() const {
    if (!store_) {
      return "rank 0";  // it has not answered in this generation
    }
    std::vector<size_t> ranks;
    std::vector<size_t> strangers;
    for (size_t rank = 0; rank < keys_.size(); ++rank) {
      if (!store_->check({keys_[rank]})) {
        ranks.push_back(rank);
        if (has_another_secret(rank)) {
          strangers.push_back(rank);
        }
      }
    }
    if (strangers.empty()) {
      return ranks_text(ranks);
    }
    return ranks_text(ranks) +
           (strangers == ranks ? " (which " : " (of which " + ranks_text(strangers) + " ") +
           (strangers.size() == 1 ? "has" : "have") +
           " another job secret: set SHERD_JOB_SECRET alike on all hosts)";
  }

  // What anybody can have written there decides nothing but a message.
  [[nodiscard]] bool has_another_secret(size_t rank) const {
    const std::string key = kFingerprint + std::to_string(rank);
    return common_->check({key}) &&
           common_->get_to_str(key) != SealedStore::fingerprint_of(environment_.job_secret);
  }

  // A host's own name often leads to 127.0.1.1 in its /etc/hosts.
  [[nodiscard]] std::string reachable_by_others() const {
    if (environment_.rank != 0 || environment_.all_local || environment_.agent_store) {
      return "";
    }
    return address_.starts_with("127.") || address_ == "::1" || address_ == "0.0.0.0" ||
                   address_ == "::"
               ? " On this host '" + *environment_.master_address + "' is " + address_ +
                     ", which no other host reaches: set MASTER_ADDR to this "
                     "host's address in the network that they share."
               : "";
  }

  void warn_where_long() {
    if (warned_ || Clock::now() < deadline_ - timeout_ + patience_of(timeout_)) {
      return;
    }
    warned_ = true;
    const std::string names = absent();
    if (names.empty()) {
      return;  // the last has come in this moment
    }
    TORCH_WARN("[World] ", meeting(), ": ", names, names.starts_with("ranks") ? " have" : " has",
               " not come yet. Waiting for up to ", seconds_until(deadline_), " s more.",
               reachable_by_others());
  }

  // Of other hosts nothing is known but that they came.
  void look_at_processes() const {
    for (size_t rank = 0; store_ && rank < keys_.size(); ++rank) {
      if (!store_->check({keys_[rank]})) {
        continue;
      }
      const RankPlace place = RankPlace::from_text(store_->get_to_str(keys_[rank]));
      if (place.shares_host_with(place_) && !place.is_alive()) {
        throw Error(ExitCode::PeerLost, meeting() + ": rank " + std::to_string(rank) +
                                            " came and has ended before all had come. Its own "
                                            "message says why.");
      }
    }
  }

  const RankEnvironment& environment_;
  std::string address_;                     ///< of the store
  c10::intrusive_ptr<c10d::Store> common_;  ///< with whatever others have put there
  std::optional<Generation> generation_;    ///< with torchrun's agent
  std::string name_;                        ///< of the generation
  c10::intrusive_ptr<c10d::Store> store_;   ///< of the generation; null until its name is known
  std::chrono::milliseconds timeout_;
  std::string version_;
  Clock::time_point deadline_;
  bool warned_ = false;
  RankPlace place_ = RankPlace::of_this_process();
  std::vector<std::string> keys_;
};

// The address that answered. A store's client would spend the whole timeout on the first address,
// and say nothing meanwhile.
std::string wait_for_answer(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  const Endpoint store{*environment.master_address, *environment.master_port};
  const auto start = Clock::now();
  const auto deadline = start + timeout;
  Dialler dialler({store});
  Dialled last;
  bool warned = false;
  for (auto pause = kAfterFirstTry;; pause = std::min(2 * pause, kBetweenTries)) {
    const auto limit = std::min<Clock::duration>(kUntilNoAnswer, deadline - Clock::now());
    Dialled dialled = dialler.dial(std::chrono::ceil<std::chrono::milliseconds>(limit)).front();
    if (dialled.fault.empty()) {
      return std::move(dialled.address);
    }
    const bool is_over = Clock::now() >= deadline;
    if (!is_over || last.fault.empty()) {  // the last try has no time for an answer
      last = std::move(dialled);
    }
    const std::string what = "cannot reach rank 0 at " + to_text(store, last);
    if (is_over) {
      throw std::runtime_error(what);
    }
    if (!warned && Clock::now() >= start + patience_of(timeout)) {
      warned = true;
      TORCH_WARN("[World] rank ", environment.rank, " ", what, ". Trying for up to ",
                 seconds_until(deadline),
                 " s more. If rank 0 was started: is MASTER_ADDR its address in the network that "
                 "the hosts share, and may they connect to MASTER_PORT?");
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline - Clock::now()));
  }
}

}  // namespace

Rendezvous meet(const RankEnvironment& environment, std::chrono::milliseconds timeout,
                bool closes_store, const Version& version) {
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
    // The store's server is a client of itself.
    const std::string address = options.isServer ? address_of(*options.masterListenFd)
                                                 : wait_for_answer(environment, timeout);
    auto store = c10::make_intrusive<c10d::TCPStore>(address, options);
    limit_connections_to(options.port, timeout);
    Arrival arrival(environment, {std::move(store), address}, timeout, version_text(version));
    Rendezvous met{arrival.wait_for_all(), address};
    if (options.isServer && closes_store) {
      set_admitting(*options.masterListenFd, false);
    }
    return met;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(
        ExitCode::PeerLost,
        "rendezvous: rank " + std::to_string(environment.rank) + " of " +
            std::to_string(environment.world_size) + " did not meet the others at " + host + ":" +
            std::to_string(options.port) + " (" + message_of(error) +
            "). Check that all ranks were started, with the same MASTER_ADDR and MASTER_PORT.");
  }
}

}  // namespace sherd::detail
