#include "rendezvous/reachability.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "rendezvous/answering_socket.h"
#include "rendezvous/dial.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;
using launch::RankEnvironment;

constexpr std::chrono::milliseconds kPatience{4000};
// A rank that has met the others answers within moments, unless its host is very busy.
constexpr std::chrono::milliseconds kUntilSilent{60'000};
// For the others to hear of a fault, before the store ends with rank 0.
constexpr std::chrono::milliseconds kUntilReachable{5000};
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

/// What ranks tell each other in the store, with a limit for those who say nothing. Instead of what
/// it is asked, a rank may say why it, and so nobody, can go on.
class Board {
 public:
  Board(c10d::Store& store, std::chrono::milliseconds patience)
      : store_(store), patience_(patience) {}

  void say(const std::string& what, int rank, const nlohmann::json& said) {
    const std::string text = said.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    store_.set(key(what, rank), std::vector<uint8_t>(text.begin(), text.end()));
  }
  void say_why_not(const std::string& what, int rank, const Error& error) {
    say(what, rank, {{"fault", error.what()}, {"code", static_cast<int>(error.code())}});
  }
  /// Whether it comes before the deadline.
  [[nodiscard]] bool comes(const std::string& what, int rank, Clock::time_point deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    try {
      store_.wait({key(what, rank)}, std::max(left, std::chrono::milliseconds(1)));
      return true;
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      return false;
    }
  }
  /// Throws the Error of a rank that cannot go on.
  [[nodiscard]] nlohmann::json heard(const std::string& what, int rank) {
    if (!comes(what, rank, Clock::now() + patience_)) {
      throw Error(ExitCode::PeerLost, "[World] rank " + std::to_string(rank) +
                                          " came and then did not say whether it reaches the "
                                          "others. Its own message may say why.");
    }
    const std::vector<uint8_t> text = store_.get(key(what, rank));
    nlohmann::json said = nlohmann::json::parse(text.begin(), text.end());
    if (said.is_object() && said.contains("fault")) {
      throw Error(static_cast<ExitCode>(said.at("code").get<int>()), said.at("fault"));
    }
    return said;
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
  const std::vector<Dialled> dialled = Dialler(endpoints).dial(kPatience);
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
    const nlohmann::json said = board.heard("at", rank);
    if (!said.is_null()) {
      speakers.push_back(speaker_from(said));
    }
  }
  return speakers;
}

void announce(Board& board, const std::vector<Speaker>& speakers) {
  nlohmann::json all = nlohmann::json::array();
  for (const Speaker& speaker : speakers) {
    all.push_back(to_json(speaker));
  }
  board.say("all", 0, all);
}

std::string gathered_verdict(Board& board, const std::vector<Speaker>& speakers) {
  std::vector<std::string> lines;
  for (const Speaker& speaker : speakers) {
    const nlohmann::json found = board.heard("found", speaker.rank);
    lines.insert(lines.end(), found.begin(), found.end());
  }
  return verdict_of(lines);
}

// The store ends with rank 0, and a rank that is gone will never know.
void leave_together(Board& board, const RankEnvironment& environment) {
  board.say("knows", environment.rank, nullptr);
  const auto deadline = Clock::now() + kUntilReachable;
  for (int rank = 0; environment.rank == 0 && rank < environment.world_size; ++rank) {
    static_cast<void>(board.comes("knows", rank, deadline));
  }
}

std::vector<Speaker> announced_speakers(Board& board) {
  std::vector<Speaker> speakers;
  for (const nlohmann::json& one : board.heard("all", 0)) {
    speakers.push_back(speaker_from(one));
  }
  return speakers;
}

/// One rank's part.
class Check {
 public:
  Check(Board& board, const RankEnvironment& environment, const std::string& own_address)
      : board_(board), environment_(environment), speaks_(environment.local_rank == 0) {
    try {
      if (speaks_) {
        socket_.emplace(own_address);
        own_ = {environment.rank, name_of_this_host(), {own_address, socket_->port()}};
      }
      board.say("at", environment.rank, speaks_ ? to_json(own_) : nlohmann::json());
    } catch (const Error& error) {
      board.say_why_not("at", environment.rank, error);
    }
  }

  /// Empty where all reach all.
  std::string verdict() {
    if (environment_.rank == 0) {
      lead();
    } else if (speaks_) {
      board_.say("found", environment_.rank, faults_of(own_, announced_speakers(board_)));
    }
    return board_.heard("verdict", 0);
  }

 private:
  // Rank 0 puts together what the others need and what they found. Whatever ends it ends them.
  void lead() {
    try {
      const std::vector<Speaker> speakers = gathered_speakers(board_, environment_.world_size);
      announce(board_, speakers);
      if (speaks_) {
        board_.say("found", 0, faults_of(own_, speakers));
      }
      board_.say("verdict", 0, gathered_verdict(board_, speakers));
    } catch (const Error& error) {
      board_.say_why_not("all", 0, error);
      board_.say_why_not("verdict", 0, error);
    }
  }

  Board& board_;
  const RankEnvironment& environment_;
  bool speaks_;
  std::optional<AnsweringSocket> socket_;  ///< until all have tried
  Speaker own_;
};

}  // namespace

void check_reachable(c10d::Store& store, const RankEnvironment& environment,
                     const std::string& own_address, std::chrono::milliseconds timeout) {
  // Rank 0 waits for the others in two turns; they wait for what it makes of it.
  const std::chrono::milliseconds patience = std::min(timeout, kUntilSilent);
  Board board(store, environment.rank == 0 ? patience : 2 * patience + 2 * kPatience);
  std::string verdict;
  try {
    verdict = Check(board, environment, own_address).verdict();
  } catch (const Error&) {
    leave_together(board, environment);
    throw;
  }
  if (!verdict.empty()) {
    leave_together(board, environment);
    throw Error(ExitCode::Unavailable,
                "[World] hosts cannot reach each other: " + verdict +
                    ". Ranks listen on ports that the system chooses: open them between the hosts, "
                    "and set MASTER_ADDR to rank 0's address in the network that they share.");
  }
}

}  // namespace sherd::detail
