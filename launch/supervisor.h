#pragma once
// `sherd launch`: starts the ranks of this host and watches over them.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::launch {

/// This host among those of a run, each with a launcher of its own: torchrun's static rendezvous.
struct LaunchHosts {
  static constexpr int kMostHosts = 100'000;

  int hosts = 1;                       ///< of the run; each starts as many ranks
  int number = 0;                      ///< of this one, from 0: its first rank is number × ranks
  std::string master_address = {};     ///< of host 0, as every host knows it
  std::uint16_t master_port = 29'500;  ///< of rank 0's store there, the same on all
};

/// What `supervise` is to start.
struct LaunchOptions {
  static constexpr int kMostRanks = 1024;

  std::vector<std::string> command;  ///< program (searched in PATH) and arguments of every rank
  int ranks = 1;                     ///< of this host, 1 to kMostRanks
  /// Of rank 0's store on 127.0.0.1; by default a free one. Not beside `hosts`.
  std::optional<std::uint16_t> port = {};
  std::optional<LaunchHosts> hosts = {};  ///< none: all ranks are on this host
  /// How long ranks wait for each other, passed on as SHERD_TIMEOUT.
  std::optional<std::chrono::seconds> timeout = {};
  /// How the ranks take a request to stop. `sherd`'s own verbs: they start with the stop
  /// signals held back until they call release_stop_signals(), and a rank that exits 75 has been
  /// asked to stop, as the others then are.
  bool holds_stop_signals = false;
  /// How long the ranks have to stop once they are asked to, before they are killed; they are told.
  /// Only with `holds_stop_signals`. None: they have as long as they need until the first of them
  /// has stopped. Then the others have kLeastGrace, and on top kGraceOfSaves times what a save
  /// takes by the latest estimate of a rank (PeerWatch::tell_save_seconds()).
  std::optional<std::chrono::seconds> stop_grace = {};
  static constexpr std::chrono::seconds kLeastGrace{60};
  static constexpr int kGraceOfSaves = 3;
  /// Whether exit code 1 is the answer of all ranks (no), and no failure of one.
  bool answers = false;
};

/// Runs `ranks` copies of the command on this host until all have ended, and returns the exit code
/// for the launcher.
///
/// Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
/// SHERD_SUPERVISOR_FD, SHERD_JOB_SECRET (random) and, unless set, OMP_NUM_THREADS (its share of
/// the cores). Rank 0 also gets SHERD_MASTER_FD: the socket listening on MASTER_PORT, bound here,
/// so that no other program can take the port. With `hosts` RANK and WORLD_SIZE count the ranks of
/// all hosts, MASTER_ADDR and MASTER_PORT are those given, nothing is bound here, and
/// SHERD_JOB_SECRET stays as it is in the environment; a rank that ends on another host is noticed
/// by those here, which exit 76. Standard output is the launcher's own; standard
/// error passes through the launcher line by line, marked "[rank 1] " for all but rank 0, which
/// alone has the launcher's standard input. A fault that several ranks report alike (a line that
/// begins with "sherd: ") is passed on once, and a
/// rank that exits after it is named in one line, without its last words. The reader of standard
/// error may stall: ranks then wait when they write there, and the launcher goes on.
///
/// Of ranks with `answers` 1 is no failure: the others have `stop_grace`, else kLeastGrace, to give
/// theirs. A line
/// says where there are more ranks than cores.
///
/// A rank that exits with another code than those, 0 and 75, or is killed, ends the others within
/// 5 s:
/// they read the news on SHERD_SUPERVISOR_FD and exit 76, and are killed 3 s later if they have
/// not. SIGTERM, SIGINT or SIGUSR1 is passed on as SIGTERM, a request to stop; a second one kills
/// all ranks. No rank survives the launcher.
///
/// Returns 0 if all ranks exited 0; 75 if they stopped on request; 74 if they were killed when
/// their time to stop was over and none had exited 75; 1 if that was the answer of one; 128 +
/// signal after a second signal, or where the first killed ranks that do not handle it; else the
/// code of the rank that died first (never that of a survivor), 128 + signal if it was killed.
/// Throws `Error`: Usage for an empty command or wrong numbers of ranks and hosts; Unavailable if
/// the port is taken or there are too few descriptors for so many ranks; InputMissing if the
/// program cannot be executed. Call it in a thread that lives until it returns, with no other
/// children to wait for. Raises the process's limit on descriptors.
[[nodiscard]] int supervise(const LaunchOptions& options);

}  // namespace sherd::launch
