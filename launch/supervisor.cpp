#include "launch/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include "launch/background_writer.h"
#include "launch/deaths.h"
#include "launch/descriptor_limit.h"
#include "launch/last_words.h"
#include "launch/loopback_socket.h"
#include "launch/peer_watch.h"
#include "launch/random_hex.h"
#include "launch/rank_process.h"
#include "launch/repeated_faults.h"
#include "launch/running_time.h"
#include "launch/signals.h"
#include "launch/spinning.h"
#include "sherd/error.h"

namespace sherd::launch {
namespace {

using Clock = std::chrono::steady_clock;
/// For survivors to exit by themselves; all must be gone within 5 s.
constexpr std::chrono::seconds kGrace{3};
/// Held for a slow reader of standard error before ranks have to wait for it.
constexpr std::size_t kMostBacklog_bytes = 1 << 20;
constexpr std::chrono::milliseconds kLookAtBacklog{50};
constexpr std::chrono::seconds kLookAtNews{10};  // before they fill a socket's buffer
/// While the ranks' time to stop runs.
constexpr std::chrono::milliseconds kLongestNap{200};
/// For the last lines to be read.
constexpr std::chrono::seconds kDrain{3};
constexpr std::size_t kSecret_bytes = 32;
/// Of a verb whose answer is no: what was checked does not hold.
constexpr int kNo = 1;

struct Rank {
  int number = 0;
  RankProcess process;
  LastWords words;
  bool killed_here = false;
};

class Supervisor {
 public:
  explicit Supervisor(const LaunchOptions& options) : options_(options) {}

  int run() {
    start_ranks();
    while (anyone_runs()) {
      wait_for_event();
      take_signals();
      for (Rank& rank : ranks_) {
        hear(rank);
        if (!is_backlogged()) {
          relay(rank);
        }
      }
      reap();
      if (grace_ && time_left() <= Clock::duration::zero()) {
        kill_all("did not stop within " + std::to_string(grace_->count()) + " s and was killed");
      }
    }
    const int code = verdict();
    errors_.drain(kDrain);
    return code;
  }

 private:
  void start_ranks();
  void say_where_cores_are_few();
  [[nodiscard]] int first_rank() const {
    return options_.hosts ? options_.hosts->number * options_.ranks : 0;
  }
  [[nodiscard]] RankStart start_of(int local_rank, const LoopbackSocket& socket) const;
  void meet_here(RankStart& start, int local_rank, const LoopbackSocket& socket) const;
  void meet_at_host_0(RankStart& start) const;
  [[nodiscard]] bool anyone_runs() const;
  [[nodiscard]] bool is_backlogged() const;
  void say(const std::string& text);
  void wait_for_event();
  void relay(Rank& rank);
  void take_signals();
  void on_stop_signal(int signal);
  void ask_to_stop() const;
  void reap();
  void on_stop();
  void on_no();
  void on_deaths(std::vector<Death> fresh);
  void stop_within(std::chrono::seconds grace);
  [[nodiscard]] std::chrono::seconds grace_after_the_first() const;
  void hear(const Rank& rank);
  void end_within(std::chrono::seconds grace);
  [[nodiscard]] Clock::duration time_left() { return *grace_ - waited_.tick(); }
  void kill_all(const std::string& how);
  [[nodiscard]] int verdict();
  void report();
  [[nodiscard]] bool has_told(const Death& death) const;

  const LaunchOptions& options_;
  SignalQueue signals_;
  BackgroundWriter errors_{STDERR_FILENO};
  RepeatedFaults faults_;
  std::string secret_ = random_hex(kSecret_bytes);
  std::optional<std::string> spin_ = spin_variable_now(options_.ranks, process_environment);
  std::vector<Rank> ranks_;
  Deaths deaths_;
  std::optional<std::chrono::seconds> grace_;  // until those that still run are killed
  RunningTime waited_;                         // of it
  double save_seconds_ = 0;                    // as a rank has estimated
  bool cut_short_ = false;                     // ranks were killed at the end of the grace
  bool stopped_ = false;                       // a rank exited 75
  bool said_no_ = false;                       // a rank exited 1, which is an answer
  int stop_signals_ = 0;
  int last_stop_signal_ = 0;
};

void Supervisor::say(const std::string& text) {
  errors_.push("sherd launch: " + text + "\n");
}

bool Supervisor::is_backlogged() const {
  return errors_.backlog_bytes() > kMostBacklog_bytes;
}

void Supervisor::meet_here(RankStart& start, int local_rank, const LoopbackSocket& socket) const {
  start.variables.insert(start.variables.end(),
                         {"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(socket.port),
                          "SHERD_JOB_SECRET=" + secret_});
  if (local_rank == 0) {
    start.inherited_fd = socket.fd.get();
    start.variables.push_back("SHERD_MASTER_FD=" + std::to_string(socket.fd.get()));
  }
}

void Supervisor::meet_at_host_0(RankStart& start) const {
  start.variables.push_back("MASTER_ADDR=" + options_.hosts->master_address);
  start.variables.push_back("MASTER_PORT=" + std::to_string(options_.hosts->master_port));
}

RankStart Supervisor::start_of(int local_rank, const LoopbackSocket& socket) const {
  const int hosts = options_.hosts ? options_.hosts->hosts : 1;
  RankStart start{.command = options_.command,
                  .variables = {"RANK=" + std::to_string(first_rank() + local_rank),
                                "WORLD_SIZE=" + std::to_string(hosts * options_.ranks),
                                "LOCAL_RANK=" + std::to_string(local_rank),
                                "LOCAL_WORLD_SIZE=" + std::to_string(options_.ranks)},
                  .unset_variables = {"SHERD_MASTER_FD", "TORCHELASTIC_USE_AGENT_STORE"},
                  .keep_stdin = first_rank() + local_rank == 0,
                  .signal_mask = signals_.previous_mask()};
  if (options_.hosts) {
    meet_at_host_0(start);
  } else {
    meet_here(start, local_rank, socket);
  }
  if (options_.holds_stop_signals) {
    const sigset_t held = stop_signals();
    sigorset(&start.signal_mask, &start.signal_mask, &held);
  }
  if (options_.timeout) {
    start.variables.push_back("SHERD_TIMEOUT=" + std::to_string(options_.timeout->count()));
  }
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    start.variables.push_back("OMP_NUM_THREADS=" +
                              std::to_string(std::max(1, usable_cores() / options_.ranks)));
  }
  if (spin_) {
    start.variables.push_back(*spin_);
  }
  return start;
}

void Supervisor::say_where_cores_are_few() {
  const int cores = usable_cores();
  if (options_.ranks > cores) {
    say(std::to_string(options_.ranks) + " ranks share " + std::to_string(cores) + " core" +
        (cores == 1 ? "" : "s") + ": they take turns, and each waits for the others. -n " +
        std::to_string(cores) + " gives each a core of its own");
  }
}

void Supervisor::start_ranks() {
  say_where_cores_are_few();
  // Closed here at the end: only rank 0 keeps the socket, so that its death closes it.
  const LoopbackSocket socket =
      options_.hosts ? LoopbackSocket{} : listen_on_loopback(options_.port);
  for (int local_rank = 0; local_rank < options_.ranks; ++local_rank) {
    const int number = first_rank() + local_rank;
    const std::string mark = number == 0 ? "" : "[rank " + std::to_string(number) + "] ";
    const auto is_new = [this, number](std::string_view line) {
      return !faults_.is_repetition(number, line);
    };
    ranks_.push_back(
        Rank{number, RankProcess(start_of(local_rank, socket)), LastWords(mark, is_new)});
  }
}

bool Supervisor::anyone_runs() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.process.running(); });
}

void Supervisor::wait_for_event() {
  std::vector<pollfd> events{{signals_.fd(), POLLIN, 0}};
  const bool backlogged = is_backlogged();
  for (const Rank& rank : ranks_) {
    events.push_back({backlogged ? -1 : rank.process.stderr_fd(), POLLIN, 0});  // -1: passed over
  }
  Clock::duration limit = kLookAtNews;
  if (grace_) {
    limit = std::clamp<Clock::duration>(time_left(), Clock::duration::zero(), kLongestNap);
  }
  if (backlogged) {
    limit = std::min<Clock::duration>(limit, kLookAtBacklog);
  }
  const int limit_ms =
      static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(limit).count());
  ::poll(events.data(), events.size(), limit_ms);  // what ranks tell by hear() can wait
}

void Supervisor::relay(Rank& rank) {
  if (rank.process.stderr_fd() < 0) {
    return;
  }
  const Bytes bytes = read_available(rank.process.stderr_fd());
  errors_.push(rank.words.take(bytes.data));
  if (bytes.at_end) {
    rank.process.close_stderr();
  }
}

void Supervisor::take_signals() {
  while (const auto signal = signals_.next()) {
    if (std::find(kStopSignals.begin(), kStopSignals.end(), *signal) != kStopSignals.end()) {
      on_stop_signal(*signal);
    }
  }
}

void Supervisor::on_stop_signal(int signal) {
  ++stop_signals_;
  last_stop_signal_ = signal;
  if (stop_signals_ == 1) {
    const bool has_limit = options_.holds_stop_signals && options_.stop_grace;
    const std::string limit =
        has_limit ? " within " + std::to_string(options_.stop_grace->count()) + " s" : "";
    say(signal_name(signal) + ": asked the ranks to stop" + limit + "; a second signal kills them");
    ask_to_stop();
    if (has_limit && deaths_.empty()) {
      stop_within(*options_.stop_grace);
    }
  } else {
    kill_all("was killed on the second " + signal_name(signal));
  }
}

void Supervisor::ask_to_stop() const {
  for (const Rank& rank : ranks_) {
    rank.process.signal(SIGTERM);
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
    errors_.push(rank.words.finish());
    if (status->signal == 0 && status->code == static_cast<int>(ExitCode::Stopped)) {
      on_stop();
    } else if (options_.answers && status->signal == 0 && status->code == kNo) {
      on_no();
    } else if (!rank.killed_here && status->shell_code() != 0) {
      fresh.push_back({rank.number, *status});
    }
  }
  if (!fresh.empty()) {
    on_deaths(std::move(fresh));
  }
}

/// One signal to one rank is enough. The others may be waiting for it, and would wait without end.
void Supervisor::on_stop() {
  const bool first = !std::exchange(stopped_, true);
  if (first && options_.holds_stop_signals && deaths_.empty()) {
    if (stop_signals_ == 0) {
      ask_to_stop();
    }
    if (!grace_) {
      stop_within(options_.stop_grace.value_or(grace_after_the_first()));
    }
  }
}

std::chrono::seconds Supervisor::grace_after_the_first() const {
  const std::chrono::duration<double> saves(LaunchOptions::kGraceOfSaves * save_seconds_);
  return LaunchOptions::kLeastGrace + std::chrono::ceil<std::chrono::seconds>(saves);
}

/// Tells the ranks too, so that they can report what they lose.
void Supervisor::stop_within(std::chrono::seconds grace) {
  end_within(grace);
  for (const Rank& rank : ranks_) {
    rank.process.tell(std::string(kStopWithin) + std::to_string(grace.count()));
  }
}

void Supervisor::hear(const Rank& rank) {
  const std::string told = rank.process.heard();
  const std::size_t last = told.rfind(kSaveTakes);
  if (last != std::string::npos) {
    save_seconds_ = std::clamp(std::atof(told.c_str() + last + kSaveTakes.size()), 0.0,
                               static_cast<double>(kLongestTimeout.count()));
  }
}

/// All ranks have the same answer, and some may still be telling it.
void Supervisor::on_no() {
  if (!std::exchange(said_no_, true) && !grace_) {
    end_within(options_.stop_grace.value_or(LaunchOptions::kLeastGrace));
  }
}

void Supervisor::on_deaths(std::vector<Death> fresh) {
  const bool first = deaths_.empty();
  deaths_.add(std::move(fresh));
  if (!first) {
    return;
  }
  const std::string news = deaths_.first().text();
  for (const Rank& rank : ranks_) {
    rank.process.tell(news);
  }
  if (anyone_runs() && !has_told(deaths_.first())) {
    say(news + "; ending the other ranks");
  }
  end_within(kGrace);
}

void Supervisor::end_within(std::chrono::seconds grace) {
  grace_ = grace;
  waited_.restart();
}

void Supervisor::kill_all(const std::string& how) {
  for (Rank& rank : ranks_) {
    if (rank.process.running() && !rank.killed_here) {
      rank.killed_here = true;
      cut_short_ = true;
      rank.process.signal(SIGKILL);
      say("rank " + std::to_string(rank.number) + " " + how);
    }
  }
  grace_.reset();
}

int Supervisor::verdict() {
  if (stop_signals_ > 1) {
    return 128 + last_stop_signal_;
  }
  if (!deaths_.empty()) {
    const Death& cause = deaths_.cause();
    if (stop_signals_ > 0 && cause.status.signal == SIGTERM) {
      return 128 + last_stop_signal_;  // it was asked to stop, and has no handler
    }
    if (!((stopped_ || said_no_) && cause.is_survivor())) {  // of a peer that left in good order
      report();
      return cause.status.shell_code();
    }
  }
  if (said_no_) {
    return kNo;
  }
  if (cut_short_ && !stopped_) {
    return static_cast<int>(ExitCode::StorageIo);
  }
  return static_cast<int>(stopped_ ? ExitCode::Stopped : ExitCode::Done);
}

/// Whether the reader knows the cause: the rank wrote a fault before it exited.
bool Supervisor::has_told(const Death& death) const {
  return death.status.signal == 0 && faults_.has_said(death.rank);
}

void Supervisor::report() {
  const Death& death = deaths_.cause();
  if (has_told(death)) {
    const int alike = deaths_.like_cause();
    say(alike == 1 ? death.text()
                   : std::to_string(alike) + " of " + std::to_string(options_.ranks) + " ranks " +
                         death.status.text());
    return;
  }
  std::string text = death.text() + ".";
  if (death.status.signal == SIGKILL) {
    text += " If nobody killed it, the system may have run out of memory: see dmesg.";
  }
  const auto& lines = ranks_[static_cast<std::size_t>(death.rank - first_rank())].words.lines();
  text += lines.empty() ? " It printed nothing before that." : " Its last output:";
  for (const std::string& line : lines) {
    text += "\n  | " + line;
  }
  say(text);
}

void check(const std::optional<LaunchHosts>& hosts) {
  if (!hosts) {
    return;
  }
  if (hosts->hosts < 1 || hosts->hosts > LaunchHosts::kMostHosts || hosts->number < 0 ||
      hosts->number >= hosts->hosts) {
    throw Error(ExitCode::Usage, "host " + std::to_string(hosts->number) + " of " +
                                     std::to_string(hosts->hosts) +
                                     ": hosts are numbered from 0 to their number less one");
  }
  if (hosts->master_address.empty()) {
    throw Error(
        ExitCode::Usage,
        "several hosts need --master-addr: an address of host 0 that is valid on all of them");
  }
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
  check(options.hosts);
  raise_descriptor_limit(kLeastDescriptors + 2 * static_cast<unsigned long>(options.ranks));
  return Supervisor(options).run();
}

}  // namespace sherd::launch
