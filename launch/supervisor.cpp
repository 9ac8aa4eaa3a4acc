#include "launch/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include "launch/last_words.h"
#include "launch/loopback_socket.h"
#include "launch/rank_process.h"
#include "launch/signals.h"
#include "sherd/error.h"

namespace sherd::launch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kGrace{
    3};  ///< for survivors to leave by themselves; all are to be gone within 5 s

void say(const std::string& text) {
  write_all(STDERR_FILENO, "sherd launch: " + text + "\n");
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

struct Rank {
  int number = 0;
  RankProcess process;
  LastWords words;
  bool killed_here = false;
};

/// A rank that ended as none should.
struct Death {
  int rank = 0;
  ExitStatus status;

  [[nodiscard]] std::string text() const {
    return "rank " + std::to_string(rank) + " " + status.text();
  }
  [[nodiscard]] bool is_survivor() const {
    return status.signal == 0 && status.code == static_cast<int>(ExitCode::PeerLost);
  }
  /// Of deaths seen at the same moment, the smallest is taken as the cause: a kill comes from
  /// outside; an abort or an exit may be the answer to a lost connection; exit 76 is.
  [[nodiscard]] int likelihood() const {
    if (status.signal != 0) {
      return status.signal == SIGABRT ? 1 : 0;
    }
    return is_survivor() ? 3 : 2;
  }
};

class Supervisor {
 public:
  explicit Supervisor(const LaunchOptions& options) : options_(options) {}

  int run() {
    start_ranks();
    while (anyone_runs()) {
      wait_for_event();
      for (Rank& rank : ranks_) {
        relay(rank);
      }
      take_signals();
      reap();
      if (deadline_ && Clock::now() >= *deadline_) {
        kill_all("did not stop within " + std::to_string(kGrace.count()) + " s and was killed");
      }
    }
    return verdict();
  }

 private:
  void start_ranks();
  [[nodiscard]] RankStart start_of(int number, const LoopbackSocket& socket) const;
  [[nodiscard]] bool anyone_runs() const;
  void wait_for_event();
  void relay(Rank& rank);
  void take_signals();
  void on_stop_signal(int signal);
  void reap();
  void on_deaths(std::vector<Death> fresh);
  void kill_all(const std::string& how);
  [[nodiscard]] const Death& cause() const;
  [[nodiscard]] int verdict() const;
  void report() const;

  const LaunchOptions& options_;
  SignalQueue signals_;
  std::vector<Rank> ranks_;
  std::vector<Death> deaths_;                  // in order of observation
  std::optional<Clock::time_point> deadline_;  // when survivors are killed
  bool stopped_ = false;                       // a rank exited 75
  int stop_signals_ = 0;
  int last_stop_signal_ = 0;
};

RankStart Supervisor::start_of(int number, const LoopbackSocket& socket) const {
  const std::string rank = std::to_string(number);
  const std::string size = std::to_string(options_.ranks);
  RankStart start{.command = options_.command,
                  .variables = {"RANK=" + rank, "WORLD_SIZE=" + size, "LOCAL_RANK=" + rank,
                                "LOCAL_WORLD_SIZE=" + size, "MASTER_ADDR=127.0.0.1",
                                "MASTER_PORT=" + std::to_string(socket.port)},
                  .unset_variables = {"SHERD_MASTER_FD", "TORCHELASTIC_USE_AGENT_STORE"},
                  .keep_stdin = number == 0,
                  .signal_mask = signals_.previous_mask()};
  if (number == 0) {
    start.inherited_fd = socket.fd.get();
    start.variables.push_back("SHERD_MASTER_FD=" + std::to_string(socket.fd.get()));
  }
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    start.variables.push_back("OMP_NUM_THREADS=" +
                              std::to_string(std::max(1, usable_cores() / options_.ranks)));
  }
  return start;
}

void Supervisor::start_ranks() {
  // Closed here at the end: only rank 0 keeps the socket, so that its death closes it.
  const LoopbackSocket socket = listen_on_loopback(options_.port);
  for (int number = 0; number < options_.ranks; ++number) {
    const std::string mark = number == 0 ? "" : "[rank " + std::to_string(number) + "] ";
    ranks_.push_back(Rank{number, RankProcess(start_of(number, socket)), LastWords(mark)});
  }
}

bool Supervisor::anyone_runs() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.process.running(); });
}

void Supervisor::wait_for_event() {
  std::vector<pollfd> events{{signals_.fd(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    events.push_back({rank.process.stderr_fd(), POLLIN, 0});  // poll passes over -1
  }
  int timeout_ms = -1;
  if (deadline_) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now()).count();
    timeout_ms = static_cast<int>(std::max<long>(left, 0));
  }
  ::poll(events.data(), events.size(), timeout_ms);
}

void Supervisor::relay(Rank& rank) {
  if (rank.process.stderr_fd() < 0) {
    return;
  }
  const Bytes bytes = read_available(rank.process.stderr_fd());
  write_all(STDERR_FILENO, rank.words.take(bytes.data));
  if (bytes.at_end) {
    rank.process.close_stderr();
  }
}

void Supervisor::take_signals() {
  while (const auto signal = signals_.next()) {
    if (*signal == SIGTERM || *signal == SIGINT) {
      on_stop_signal(*signal);
    }
  }
}

void Supervisor::on_stop_signal(int signal) {
  ++stop_signals_;
  last_stop_signal_ = signal;
  if (stop_signals_ == 1) {
    say(signal_name(signal) + ": asked the ranks to stop; once more to kill them");
    for (const Rank& rank : ranks_) {
      rank.process.signal(SIGTERM);
    }
  } else {
    kill_all("was killed on the second " + signal_name(signal));
  }
}

void Supervisor::reap() {
  std::vector<Death> fresh;
  for (Rank& rank : ranks_) {
    const auto status = rank.process.reap();
    if (!status) {
      continue;
    }
    relay(rank);  // what it said between the last look and its end
    write_all(STDERR_FILENO, rank.words.finish());
    const bool asked = status->signal == 0 && status->code == static_cast<int>(ExitCode::Stopped);
    stopped_ = stopped_ || asked;
    if (!asked && !rank.killed_here && status->shell_code() != 0) {
      fresh.push_back({rank.number, *status});
    }
  }
  if (!fresh.empty()) {
    on_deaths(std::move(fresh));
  }
}

void Supervisor::on_deaths(std::vector<Death> fresh) {
  std::stable_sort(fresh.begin(), fresh.end(),
                   [](const Death& a, const Death& b) { return a.likelihood() < b.likelihood(); });
  const bool first = deaths_.empty();
  deaths_.insert(deaths_.end(), fresh.begin(), fresh.end());
  if (!first) {
    return;
  }
  const std::string news = deaths_.front().text();
  for (const Rank& rank : ranks_) {
    rank.process.tell(news);
  }
  if (anyone_runs()) {
    say(news + "; ending the other ranks");
  }
  deadline_ = Clock::now() + kGrace;
}

void Supervisor::kill_all(const std::string& how) {
  for (Rank& rank : ranks_) {
    if (rank.process.running() && !rank.killed_here) {
      rank.killed_here = true;
      rank.process.signal(SIGKILL);
      say("rank " + std::to_string(rank.number) + " " + how);
    }
  }
  deadline_.reset();
}

const Death& Supervisor::cause() const {
  const auto found = std::find_if(deaths_.begin(), deaths_.end(),
                                  [](const Death& death) { return !death.is_survivor(); });
  return found == deaths_.end() ? deaths_.front() : *found;
}

int Supervisor::verdict() const {
  if (stop_signals_ > 1) {
    return 128 + last_stop_signal_;
  }
  if (!deaths_.empty()) {
    report();
    return cause().status.shell_code();
  }
  return static_cast<int>(stopped_ ? ExitCode::Stopped : ExitCode::Done);
}

void Supervisor::report() const {
  const Death& death = cause();
  std::string text = death.text() + ".";
  if (death.status.signal == SIGKILL) {
    text += " If nobody killed it, the system may have run out of memory: see dmesg.";
  }
  const auto& lines = ranks_[static_cast<std::size_t>(death.rank)].words.lines();
  text += lines.empty() ? " It left no last words." : " Its last words:";
  for (const std::string& line : lines) {
    text += "\n  | " + line;
  }
  say(text);
}

}  // namespace

int supervise(const LaunchOptions& options) {
  if (options.command.empty()) {
    throw Error(ExitCode::Usage, "nothing to launch: give a command, for example train my.toml");
  }
  if (options.ranks < 1 || options.ranks > LaunchOptions::kMostRanks) {
    throw Error(ExitCode::Usage, "cannot launch " + std::to_string(options.ranks) +
                                     " ranks: give a number from 1 to " +
                                     std::to_string(LaunchOptions::kMostRanks));
  }
  return Supervisor(options).run();
}

}  // namespace sherd::launch
