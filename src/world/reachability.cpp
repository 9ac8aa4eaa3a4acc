#include "world/reachability.h"

#include <algorithm>
#include <exception>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "files/file_descriptor.h"
#include "sherd/error.h"
#include "world/dial.h"
#include "world/network.h"

namespace sherd::detail {

namespace {

using launch::RankEnvironment;

constexpr std::chrono::milliseconds kPatience{4000};
// A rank that has met the others answers within moments, unless its host is very busy.
constexpr std::chrono::milliseconds kUntilSilent{60'000};
constexpr std::size_t kMostNamed = 4;

/// The first rank of a host.
struct Speaker {
  int rank = 0;
  std::string host_name;
  Endpoint endpoint;
};

std::string name_of_this_host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

nlohmann::json to_json(const Speaker& speaker) {
  return {{"rank", speaker.rank},
          {"host_name", speaker.host_name},
          {"address", speaker.endpoint.host},
          {"port", speaker.endpoint.port}};
}

Speaker speaker_from(const nlohmann::json& json) {
  return {json.at("rank"), json.at("host_name"), {json.at("address"), json.at("port")}};
}

/// What ranks tell each other in the store, with a limit for those who say nothing.
class Board {
 public:
  Board(c10d::Store& store, std::chrono::milliseconds patience)
      : store_(store), patience_(patience) {}

  void say(const std::string& what, int rank, const std::string& text) {
    store_.set(key(what, rank), std::vector<uint8_t>(text.begin(), text.end()));
  }
  [[nodiscard]] std::string heard(const std::string& what, int rank) {
    try {
      store_.wait({key(what, rank)}, patience_);
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      throw Error(ExitCode::PeerLost, "[World] rank " + std::to_string(rank) +
                                          " came and then did not say whether it reaches the "
                                          "others. Its own message may say why.");
    }
    const std::vector<uint8_t> text = store_.get(key(what, rank));
    return {text.begin(), text.end()};
  }

 private:
  static std::string key(const std::string& what, int rank) {
    return "reach/" + what + "/" + std::to_string(rank);
  }

  c10d::Store& store_;
  std::chrono::milliseconds patience_;
};

// A line for each that this host cannot reach.
nlohmann::json faults_of(const Speaker& own, const std::vector<Speaker>& speakers) {
  std::vector<Endpoint> endpoints;
  for (const Speaker& speaker : speakers) {
    endpoints.push_back(speaker.endpoint);
  }
  const std::vector<Dialled> dialled = dial(endpoints, kPatience);
  nlohmann::json lines = nlohmann::json::array();
  for (std::size_t i = 0; i < speakers.size(); ++i) {
    if (!dialled[i].fault.empty()) {
      lines.push_back("rank " + std::to_string(own.rank) + " on " + own.host_name + " (" +
                      own.endpoint.host + ") cannot reach rank " +
                      std::to_string(speakers[i].rank) + " on " + speakers[i].host_name + " at " +
                      to_text(endpoints[i], dialled[i]));
    }
  }
  return lines;
}

std::string verdict_of(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), kMostNamed); ++i) {
    text += (i == 0 ? "" : "; ") + lines[i];
  }
  if (lines.size() > kMostNamed) {
    text += "; and " + std::to_string(lines.size() - kMostNamed) + " more";
  }
  return text;
}

std::vector<Speaker> gathered_speakers(Board& board, int world_size) {
  std::vector<Speaker> speakers;
  for (int rank = 0; rank < world_size; ++rank) {
    const nlohmann::json said = nlohmann::json::parse(board.heard("at", rank));
    if (!said.is_null()) {
      speakers.push_back(speaker_from(said));
    }
  }
  return speakers;
}

// Rank 0 puts together what the others need and what they found.
void lead(Board& board, const std::vector<Speaker>& speakers) {
  nlohmann::json all = nlohmann::json::array();
  for (const Speaker& speaker : speakers) {
    all.push_back(to_json(speaker));
  }
  board.say("all", 0, all.dump());
}

std::string gathered_verdict(Board& board, const std::vector<Speaker>& speakers) {
  std::vector<std::string> lines;
  for (const Speaker& speaker : speakers) {
    const nlohmann::json found = nlohmann::json::parse(board.heard("found", speaker.rank));
    lines.insert(lines.end(), found.begin(), found.end());
  }
  return verdict_of(lines);
}

// The store ends with rank 0.
void leave_together(Board& board, const RankEnvironment& environment) {
  board.say("knows", environment.rank, "");
  for (int rank = 0; environment.rank == 0 && rank < environment.world_size; ++rank) {
    static_cast<void>(board.heard("knows", rank));
  }
}

std::vector<Speaker> announced_speakers(Board& board) {
  std::vector<Speaker> speakers;
  for (const nlohmann::json& one : nlohmann::json::parse(board.heard("all", 0))) {
    speakers.push_back(speaker_from(one));
  }
  return speakers;
}

}  // namespace

void check_reachable(c10d::Store& store, const RankEnvironment& environment,
                     const std::string& own_address, std::chrono::milliseconds timeout) {
  Board board(store, std::min(timeout, kUntilSilent));
  files::FileDescriptor listening;  // until all have tried
  const bool speaks = environment.local_rank == 0;
  Speaker own;
  if (speaks) {
    listening = files::FileDescriptor(listen_on(own_address, 0));
    own = {environment.rank, name_of_this_host(), {own_address, port_of(listening.get())}};
  }
  board.say("at", environment.rank, speaks ? to_json(own).dump() : "null");
  if (environment.rank == 0) {
    lead(board, gathered_speakers(board, environment.world_size));
  }
  if (speaks) {
    board.say("found", environment.rank, faults_of(own, announced_speakers(board)).dump());
  }
  if (environment.rank == 0) {
    board.say("verdict", 0, gathered_verdict(board, announced_speakers(board)));
  }
  const std::string verdict = board.heard("verdict", 0);
  if (!verdict.empty()) {
    leave_together(board, environment);
    throw Error(ExitCode::Unavailable,
                "[World] hosts cannot reach each other: " + verdict +
                    ". Ranks listen on ports that the system chooses: open them between the hosts, "
                    "and set MASTER_ADDR to rank 0's address in the network that they share.");
  }
}

}  // namespace sherd::detail
