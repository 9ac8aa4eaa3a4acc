#pragma once
// One rank as a child process.

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "launch/exit_status.h"
#include "launch/pipes.h"

namespace sherd::launch {

/// What a rank is started with.
struct RankStart {
  const std::vector<std::string>& command;  ///< program (searched in PATH) and arguments
  /// "NAME=value", set or replaced in this process's environment.
  std::vector<std::string> variables = {};
  std::vector<std::string> unset_variables = {};  ///< names
  int inherited_fd = -1;                          ///< kept open across exec; -1 for none
  bool keep_stdin = false;                        ///< otherwise standard input is /dev/null
  sigset_t signal_mask{};                         ///< the mask it starts with
};

/// A running child. Its standard error comes through a pipe. Over a pair of sockets the launcher
/// tells it of lost peers and of deadlines, and is told by it (the child's end is its
/// SHERD_SUPERVISOR_FD). Killed and reaped at the end if
/// it still runs.
///
/// The child dies with the thread that started it (PR_SET_PDEATHSIG): that thread must live as long
/// as the child.
class RankProcess {
 public:
  /// Throws `Error`: InputMissing if the program cannot be executed, Unavailable if the system has
  /// no room for a process.
  explicit RankProcess(const RankStart& start);
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess();

  [[nodiscard]] bool running() const { return pid_ > 0; }
  /// Sends a signal if it still runs.
  void signal(int number) const;
  /// Writes one line into the pipe that the rank's PeerWatch reads. Never blocks.
  void tell(const std::string& line) const;
  /// What its PeerWatch has told the launcher since the last call. Never blocks.
  [[nodiscard]] std::string heard() const;
  /// How it ended, once; none while it runs.
  [[nodiscard]] std::optional<ExitStatus> reap();
  /// Non-blocking; -1 once closed.
  [[nodiscard]] int stderr_fd() const { return stderr_.get(); }
  void close_stderr() { stderr_.close(); }

 private:
  pid_t pid_ = -1;
  FileDescriptor stderr_;
  FileDescriptor news_;
};

}  // namespace sherd::launch
