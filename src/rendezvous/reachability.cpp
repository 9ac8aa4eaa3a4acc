// check_reachable(): whether the hosts of a world reach each other.

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "comm/exchange.h"
#include "comm/rank_place.h"
#include "rendezvous/network.h"
#include "rendezvous/rendezvous.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

using launch::RankEnvironment;

constexpr std::chrono::milliseconds kPatience{4000};
constexpr std::chrono::milliseconds kUntilSilent{60'000};
constexpr std::size_t kMostNamed = 4;

/// Messages between ranks in the store. Instead of the expected message, a rank may post why it,
/// and so nobody, can go on.
class StoreMessages {
 public:
  StoreMessages(c10d::Store& store, std::chrono::milliseconds patience)
      : store_(store), patience_(patience) {}

  void post(const std::string& topic, int rank, const nlohmann::json& message) {
    store_.set(key(topic, rank),
               message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  void post_fault(const std::string& topic, int rank, const Error& error) {
    post(topic, rank, {{"fault", error.what()}, {"code", static_cast<int>(error.code())}});
  }
  /// Waits for the message of a rank. Throws the Error of a rank that cannot go on.
  [[nodiscard]] nlohmann::json receive(const std::string& topic, int rank) {
    try {
      store_.wait({key(topic, rank)}, patience_);
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      throw Error(ExitCode::PeerLost, "[World] rank " + std::to_string(rank) +
                                          " came and then did not say whether it reaches the "
                                          "others. Its own message may say why.");
    }
    nlohmann::json message = nlohmann::json::parse(store_.get_to_str(key(topic, rank)));
    if (message.is_object() && message.contains("fault")) {
      throw Error(static_cast<ExitCode>(message.at("code").get<int>()), message.at("fault"));
    }
    return message;
  }

 private:
  static std::string key(const std::string& topic, int rank) {
    return "reach/" + topic + "/" + std::to_string(rank);
  }

  c10d::Store& store_;
  std::chrono::milliseconds patience_;
};

// One line per host that `own` cannot reach.
nlohmann::json faults_of(const nlohmann::json& own, const nlohmann::json& hosts) {
  std::vector<Endpoint> endpoints;
  for (const nlohmann::json& host : hosts) {
    endpoints.push_back({host.at("address"), host.at("port")});
  }
  const std::vector<Dialled> dialled = Dialler(endpoints).dial(kPatience);
  nlohmann::json lines = nlohmann::json::array();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!dialled[i].fault.empty()) {
      lines.push_back(own.at("name").get<std::string>() + " (" +
                      own.at("address").get<std::string>() + ") cannot reach " +
                      hosts[i].at("name").get<std::string>() + " at " +
                      to_text(endpoints[i], dialled[i]));
    }
  }
  return lines;
}

// The first ranks of all hosts.
nlohmann::json hosts_of(StoreMessages& messages, int world_size) {
  nlohmann::json hosts = nlohmann::json::array();
  for (int rank = 0; rank < world_size; ++rank) {
    if (nlohmann::json entry = messages.receive("at", rank); !entry.is_null()) {
      hosts.push_back(std::move(entry));
    }
  }
  return hosts;
}

// What the hosts found; empty if all reach all.
std::string verdict_on(StoreMessages& messages, const nlohmann::json& hosts) {
  std::size_t count = 0;
  std::string text;
  for (const nlohmann::json& host : hosts) {
    for (const nlohmann::json& line : messages.receive("found", host.at("rank"))) {
      if (++count <= kMostNamed) {
        text += (count == 1 ? "" : "; ") + line.get<std::string>();
      }
    }
  }
  return count <= kMostNamed ? text
                             : text + "; and " + std::to_string(count - kMostNamed) + " more";
}

// One rank's part. Rank 0 collects what the others need and what they found. Whatever ends it ends
// them.
std::string verdict_of_all(StoreMessages& messages, const RankEnvironment& environment,
                           const std::string& own_address) {
  std::optional<AnsweringSocket> socket;  // until all have tried
  nlohmann::json own;                     // null unless this is the first rank of its host
  const int rank = environment.rank;
  try {
    if (environment.local_rank == 0) {
      socket.emplace(own_address);
      own = {{"rank", rank},
             {"name", "rank " + std::to_string(rank) + " on " + host_name()},
             {"address", own_address},
             {"port", socket->port()}};
    }
    messages.post("at", rank, own);
  } catch (const Error& error) {
    messages.post_fault("at", rank, error);
  }
  try {
    const nlohmann::json hosts =
        rank == 0 ? hosts_of(messages, environment.world_size) : nlohmann::json();
    if (rank == 0) {
      messages.post("all", 0, hosts);
    }
    if (environment.local_rank == 0) {
      messages.post("found", rank, faults_of(own, messages.receive("all", 0)));
    }
    if (rank == 0) {
      messages.post("verdict", 0, verdict_on(messages, hosts));
    }
  } catch (const Error& error) {
    if (rank != 0) {
      throw;
    }
    messages.post_fault("all", 0, error);
    messages.post_fault("verdict", 0, error);
  }
  return messages.receive("verdict", 0);
}

}  // namespace

void check_reachable(c10d::Store& store, const RankEnvironment& environment,
                     const std::string& own_address, std::chrono::milliseconds timeout) {
  // Rank 0 waits for the others twice; they wait for its verdict.
  const std::chrono::milliseconds patience = std::min(timeout, kUntilSilent);
  StoreMessages messages(store, environment.rank == 0 ? patience : 2 * patience + 2 * kPatience);
  const auto all_know = [&] {
    wait_until_all_know(store, "reach/knows", environment.rank, environment.world_size);
  };
  std::string verdict;
  try {
    verdict = verdict_of_all(messages, environment, own_address);
  } catch (const Error&) {
    all_know();
    throw;
  }
  if (!verdict.empty()) {
    all_know();
    throw Error(ExitCode::Unavailable,
                "[World] hosts cannot reach each other: " + verdict +
                    ". Ranks listen on ports that the system chooses: open them between the hosts, "
                    "and set MASTER_ADDR to rank 0's address in the network that they share.");
  }
}

}  // namespace sherd::detail
