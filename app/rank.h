#pragma once
// What every command that runs on ranks does first.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "launch/peer_watch.h"
#include "launch/rank_environment.h"
#include "launch/stop_watch.h"
#include "sherd/world.h"

namespace app {

/// What SIGTERM, SIGINT and SIGUSR1 do.
enum class OnSignal {
  EndProcess,   ///< what they do to any process: for verbs that have nothing to save
  RequestStop,  ///< the first asks for a stop (sherd::launch::StopRequest)
};

/// This process as one rank of a run: signals, the launcher's reports of lost peers, and the world.
class Rank {
 public:
  /// Reads the environment. Throws sherd::Error(Usage) for one that makes no sense.
  explicit Rank(OnSignal on_signal);
  [[nodiscard]] bool is_first() const { return environment_.rank == 0; }
  /// Meets the other ranks. Collective; once. From then on a rank that was asked to stop ends
  /// by itself at the launcher's deadline, if there is one (sherd::launch::StopWatch).
  [[nodiscard]] sherd::World join(const sherd::WorldOptions& options = {});
  /// Before join(): what is lost if this process ends at once, as StopWatch::Questions::lost.
  void set_lost_at_a_stop(std::function<std::string()> lost) { lost_ = std::move(lost); }
  /// Tells the launcher how long a save is expected to take: PeerWatch::tell_save_seconds().
  void tell_save_seconds(double seconds) const { watch_->tell_save_seconds(seconds); }
  /// Runs `work`, which gives the exit code of the process. Where it fails because of another rank
  /// (llm::train::ReportedElsewhere), waits until that one has reported it and ended: launchers
  /// quote the first rank to end. Throws what `work` throws.
  int run(const std::function<int()>& work);
  /// This rank fails and still records why: another one's end does not end it from now on.
  void outlive_peers() { watch_->outlive_peers(); }
  [[nodiscard]] const sherd::launch::RankEnvironment& environment() const { return environment_; }

 private:
  sherd::launch::RankEnvironment environment_;
  OnSignal on_signal_;
  std::function<std::string()> lost_ = [] { return std::string(); };
  std::unique_ptr<sherd::launch::PeerWatch> watch_;
  std::unique_ptr<sherd::launch::StopWatch> stop_watch_;
};

/// Prints a line for people: to standard error where standard output is kept for JSON. That nobody
/// can read it stops nothing: a run outlives its terminal.
void say(const std::string& line, bool json_on_stdout = false);

/// Prints a line to standard output that is what a verb was called for. Throws sherd::Error
/// (StorageIo) where it cannot be written: a full disk, a reader that has gone.
void print_result(const std::string& line);

/// Text of data or of a model for standard output: as it is, but printable on a terminal.
[[nodiscard]] std::string for_stdout(const std::string& text);

}  // namespace app
