#pragma once
// Startup of every command that runs on ranks.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "launch/peer_watch.h"
#include "launch/rank_environment.h"
#include "launch/stop_watch.h"
#include "sherd/world.h"

namespace app {

/// The effect of SIGTERM, SIGINT and SIGUSR1.
enum class OnSignal {
  EndProcess,   ///< the default: for verbs that have nothing to save
  RequestStop,  ///< the first requests a stop (sherd::launch::StopRequest)
};

/// This process as one rank of a run: signals, the launcher's reports of lost peers, and the world.
class Rank {
 public:
  /// Reads the environment. Throws sherd::Error(Usage) if it is inconsistent.
  explicit Rank(OnSignal on_signal);
  [[nodiscard]] bool is_first() const { return environment_.rank == 0; }
  /// Connects to the other ranks. Collective; call once. After a stop request the rank then ends
  /// itself at the launcher's deadline, if there is one (sherd::launch::StopWatch).
  [[nodiscard]] sherd::World join(const sherd::WorldOptions& options = {});
  /// Sets what is lost if this process ends at once (StopWatch::Questions::lost). Call before
  /// join().
  void set_lost_at_a_stop(std::function<std::string()> lost) { lost_ = std::move(lost); }
  /// Tells the launcher how long a save is expected to take: PeerWatch::tell_save_seconds().
  void tell_save_seconds(double seconds) const { watch_->tell_save_seconds(seconds); }
  /// Where this rank fails because of another one (llm::setup::ReportedElsewhere): waits until that
  /// rank has reported the error and ended. Launchers quote the first rank that ends.
  void await_report() const;
  /// Runs `work`, which returns the exit code of the process, with await_report() where it applies.
  /// Throws what `work` throws.
  int run(const std::function<int()>& work);
  /// Keeps this rank alive when another one ends, so that it can record why it fails.
  void outlive_peers() const { watch_->outlive_peers(); }
  [[nodiscard]] const sherd::launch::RankEnvironment& environment() const { return environment_; }

 private:
  sherd::launch::RankEnvironment environment_;
  OnSignal on_signal_;
  std::function<std::string()> lost_ = [] { return std::string(); };
  std::unique_ptr<sherd::launch::PeerWatch> watch_;
  std::unique_ptr<sherd::launch::StopWatch> stop_watch_;
};

/// Prints a line for people: to standard error if standard output is reserved for JSON. Ignores
/// write errors: a run outlives its terminal.
void say(const std::string& line, bool json_on_stdout = false);

/// Writes a part of a verb's result to standard output at once. Throws as print_result().
void write_result(const std::string& text);

/// Prints a line of a verb's result to standard output. Throws sherd::Error(StorageIo) if it cannot
/// be written: a full disk, or a closed pipe.
void print_result(const std::string& line);

/// Returns text of data or of a model, made printable if standard output is a terminal.
[[nodiscard]] std::string for_stdout(const std::string& text);

}  // namespace app
