#pragma once
// Who this process is among the ranks of a job, read from the environment that its launcher set.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace sherd::launch {

/// Looks up an environment variable. A parameter of `detect`, so that tests need not change the
/// process's environment.
using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// The lookup in this process's own environment.
[[nodiscard]] std::optional<std::string> process_environment(const std::string& name);

/// Who started the ranks, in the order in which they are recognised.
enum class Launcher {
  SherdLaunch,  ///< RANK and WORLD_SIZE, with SHERD_SUPERVISOR_FD
  Torchrun,     ///< RANK and WORLD_SIZE: `torchrun --no-python`, or set by hand
  Slurm,        ///< a task of a Slurm step (`srun`)
  OpenMpi,      ///< `mpirun` of Open MPI
  Pmi,          ///< another MPI's `mpirun` or `mpiexec`
  Alone,        ///< none: a world of one
};

/// "sherd launch", "torchrun", "Slurm", "Open MPI", "PMI" or "alone".
[[nodiscard]] std::string_view to_text(Launcher launcher);

/// The longest time that ranks can be told to wait for each other: seven days.
inline constexpr std::chrono::seconds kLongestTimeout{7 * 24 * 3600};

/// What a rank needs to know to meet the others.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< among the ranks of this host
  int local_world_size = 1;  ///< ranks of this host; 1 where the launcher does not say
  Launcher launcher = Launcher::Alone;
  /// Where rank 0's store listens. None in a world of one. 127.0.0.1 when all ranks are local,
  /// unless torchrun serves the store: its address is then taken as it is.
  std::optional<std::string> master_address;
  std::optional<std::uint16_t> master_port;  ///< none in a world of one
  /// torchrun serves the store itself (TORCHELASTIC_USE_AGENT_STORE=True): every rank is a client.
  bool agent_store = false;
  /// All ranks are on this host: the local world is the world, or the address of rank 0 is
  /// loopback.
  bool all_local = true;
  /// A listening socket on `master_port` that `sherd launch` bound and handed to rank 0
  /// (SHERD_MASTER_FD).
  std::optional<int> master_fd;
  /// The pipe on which `sherd launch` reports a lost peer (SHERD_SUPERVISOR_FD); see
  /// peer_watch.h.
  std::optional<int> supervisor_fd;
  /// A launcher's process started this one, and no rank is to outlive it: Slurm, MPI and torchrun,
  /// but not where the variables were set by hand.
  bool ends_with_parent = false;
  /// Known to the ranks of this job and to nobody else: SHERD_JOB_SECRET, random under
  /// `sherd launch`; else what names the job (TORCHELASTIC_RUN_ID, Slurm's job and step, MPI's
  /// namespace), which others may guess. Under Slurm with how often the job was started again.
  /// Empty where there is nothing.
  std::string job_secret;
  /// Names what the launcher starts again under one name: "Slurm job 42" (SLURM_JOB_ID), "torchrun
  /// abc" (TORCHELASTIC_RUN_ID, unless it is torchrun's default, "none"). Empty where nothing does.
  std::string launch;
  /// Whether it was started before under that name: SLURM_RESTART_COUNT or
  /// TORCHELASTIC_RESTART_COUNT is above 0.
  bool restarted = false;
  /// How long ranks wait for each other (SHERD_TIMEOUT, seconds), where the program does not say.
  std::optional<std::chrono::seconds> timeout;
};

/// Reads the environment: RANK and WORLD_SIZE, else a Slurm step, else Open MPI, else PMI, else
/// alone. An empty variable counts as unset. A Slurm step whose number of tasks differs from that
/// of Open MPI or PMI is the step of their daemons, not of the ranks, and is passed over; so are
/// Slurm's batch, extern and interactive steps.
///
/// Address: MASTER_ADDR, else the first host of SLURM_STEP_NODELIST or SLURM_NODELIST, else
/// loopback if all ranks are local. Port: MASTER_PORT, else under Slurm and MPI 10000 + FNV-1a(job)
/// mod 20000, below the ports that Linux hands out, where job is "<SLURM_JOB_ID>.<SLURM_STEP_ID>",
/// or PMIX_NAMESPACE, PMI_JOBID, SLURM_JOB_ID or PBS_JOBID.
///
/// Throws `Error`: Usage, with variable and value, for what is no number, out of range or half set;
/// Unavailable, with the variables to set, if no address or port can be found.
[[nodiscard]] RankEnvironment detect(const EnvLookup& get);

}  // namespace sherd::launch
