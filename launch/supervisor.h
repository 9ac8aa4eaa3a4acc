#pragma once
// `sherd launch`: starts the ranks of this host and supervises them.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::launch {

/// This host among the hosts of a run, each with its own launcher: torchrun's static rendezvous.
struct LaunchHosts {
  static constexpr int kMostHosts = 100'000;

  int hosts = 1;                       ///< of the run; each starts the same number of ranks
  int number = 0;                      ///< of this host, from 0: its first rank is number × ranks
  std::string master_address = {};     ///< of host 0, valid on every host
  std::uint16_t master_port = 29'500;  ///< of rank 0's store, the same on all hosts
};

/// Options of `supervise`.
struct LaunchOptions {
  static constexpr int kMostRanks = 1024;

  std::vector<std::string> command;  ///< program (searched in PATH) and arguments of every rank
  int ranks = 1;                     ///< of this host, 1 to kMostRanks
  /// Port of rank 0's store on 127.0.0.1; by default a free one. Not together with `hosts`.
  std::optional<std::uint16_t> port = {};
  std::optional<LaunchHosts> hosts = {};  ///< none: all ranks are on this host
  /// How long ranks wait for each other, passed on as SHERD_TIMEOUT.
  std::optional<std::chrono::seconds> timeout = {};
  /// True for `sherd`'s own verbs: ranks start with stop signals blocked until they call
  /// release_stop_signals(), and if one exits with 75 the others are asked to stop too.
  bool holds_stop_signals = false;
  /// Time that ranks get to stop on request before they are killed; ranks are told. Only with
  /// `holds_stop_signals`. None: unlimited until the first rank has stopped. Then the others have
  /// kLeastGrace plus kGraceOfSaves times the latest estimate of a save
  /// (PeerWatch::tell_save_seconds()).
  std::optional<std::chrono::seconds> stop_grace = {};
  static constexpr std::chrono::seconds kLeastGrace{60};
  static constexpr int kGraceOfSaves = 3;
  /// True if exit code 1 is the common answer "no" of all ranks, not a failure of one.
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
/// SHERD_JOB_SECRET keeps its value from the environment. If a rank on another host ends, the ranks
/// here notice it and exit 76.
///
/// Ranks share the launcher's standard output; only rank 0 has its standard input. Standard error
/// passes through the launcher line by line, marked "[rank 1] " except for rank 0. A fault that
/// several ranks report (a line that begins with "sherd: ") is printed once; a rank that exits
/// after it is named in one line, without its last output. If the reader of standard error stalls,
/// ranks wait when they write there, but the launcher does not. Prints a line if there are more
/// ranks than cores.
///
/// With `answers`, exit code 1 is not a failure: the other ranks have `stop_grace`, else
/// kLeastGrace, to answer. A rank that exits with a code other than this, 0 and 75, or is killed,
/// ends the others within 5 s: they read a message on SHERD_SUPERVISOR_FD and exit 76, or are
/// killed 3 s later. SIGTERM, SIGINT and SIGUSR1 are passed on as SIGTERM, a request to stop; a
/// second signal kills all ranks. No rank survives the launcher.
///
/// Returns 0 if all ranks exited 0; 75 if they stopped on request; 74 if they were killed when
/// their time to stop was over and none had exited 75; 1 if a rank answered that; 128 + signal
/// after a second signal, or if the first killed ranks that do not handle it; else the code of the
/// rank that died first (never that of a survivor), 128 + signal if it was killed. Throws `Error`:
/// Usage for an empty command or wrong numbers of ranks and hosts; Unavailable if the port is taken
/// or there are too few descriptors for so many ranks; InputMissing if the program cannot be
/// executed. Call it in a thread that lives until it returns, with no other children to wait for.
/// Raises the process's limit on descriptors.
[[nodiscard]] int supervise(const LaunchOptions& options);

}  // namespace sherd::launch
