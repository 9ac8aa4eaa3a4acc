#pragma once
// `sherd launch`: starts the ranks of one host and watches over them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::launch {

/// What `supervise` is to start.
struct LaunchOptions {
  static constexpr int kMostRanks = 1024;

  std::vector<std::string> command;  ///< program (searched in PATH) and arguments of every rank
  int ranks = 1;                     ///< 1 to kMostRanks
  std::optional<std::uint16_t> port =
      {};  ///< of rank 0's store on 127.0.0.1; by default a free one
};

/// Runs `ranks` copies of the command on this host until all have ended, and returns the exit code
/// for the launcher.
///
/// Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
/// SHERD_SUPERVISOR_FD and, unless set, OMP_NUM_THREADS (its share of the cores). Rank 0 also gets
/// SHERD_MASTER_FD: the socket listening on MASTER_PORT, bound here, so that no other program can
/// take the port. Standard output is the launcher's own; standard error passes through the launcher
/// line by line, marked "[rank 1] " for all but rank 0, which alone has the launcher's standard
/// input.
///
/// A rank that exits with another code than 0 and 75, or is killed, ends the others within 5 s:
/// they read the news on SHERD_SUPERVISOR_FD and exit 76, and are killed 3 s later if they have
/// not. SIGTERM or SIGINT is passed on as SIGTERM, a request to stop; a second one kills all ranks.
/// No rank survives the launcher.
///
/// Returns 0 if all ranks exited 0; 75 if they stopped on request; the code of the rank that died
/// first (never that of a survivor), 128 + signal if it was killed; 128 + signal after a second
/// signal. Throws `Error`: Usage for an empty command or a wrong number of ranks, Unavailable if
/// the port is taken, InputMissing if the program cannot be executed. Call it in a thread that
/// lives until it returns, with no other children to wait for.
[[nodiscard]] int supervise(const LaunchOptions& options);

}  // namespace sherd::launch
