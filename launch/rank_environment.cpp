#include "launch/rank_environment.h"

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <vector>

#include "launch/host_list.h"
#include "sherd/error.h"

namespace sherd::launch {
namespace {

/// The environment with checks: every fault names the variable and its value.
class Variables {
 public:
  explicit Variables(const EnvLookup& get) : get_(get) {}

  [[nodiscard]] std::optional<std::string> text(const std::string& name) const {
    std::optional<std::string> value = get_(name);
    return value && value->empty() ? std::nullopt : value;
  }

  /// The first of `names` that is set.
  [[nodiscard]] std::optional<std::string> first_text(
      std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (auto value = text(name)) {
        return value;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<int> integer(const std::string& name, int least,
                                           int most = std::numeric_limits<int>::max()) const {
    const auto value = text(name);
    if (!value) {
      return std::nullopt;
    }
    int number = 0;
    const char* end = value->data() + value->size();
    const auto [stop, fault] = std::from_chars(value->data(), end, number);
    if (fault != std::errc{} || stop != end || number < least || number > most) {
      const std::string upper =
          most == std::numeric_limits<int>::max() ? "" : " and at most " + std::to_string(most);
      throw Error(ExitCode::Usage, name + "=" + *value + " is not an integer of at least " +
                                       std::to_string(least) + upper);
    }
    return number;
  }

 private:
  const EnvLookup& get_;
};

/// A rank and the number of ranks it is counted in.
struct Position {
  int rank = 0;
  int size = 1;
};

/// Two variables that only make sense together.
std::optional<Position> position(const Variables& variables, const std::string& rank_name,
                                 const std::string& size_name) {
  const auto rank = variables.integer(rank_name, 0);
  const auto size = variables.integer(size_name, 1);
  if (!rank && !size) {
    return std::nullopt;
  }
  if (!rank || !size) {
    const std::string& set = rank ? rank_name : size_name;
    const std::string& unset = rank ? size_name : rank_name;
    throw Error(ExitCode::Usage, set + "=" + *variables.text(set) + " is set, but " + unset +
                                     " is not: set both or neither");
  }
  if (*rank >= *size) {
    throw Error(ExitCode::Usage, rank_name + "=" + std::to_string(*rank) + " is not below " +
                                     size_name + "=" + std::to_string(*size));
  }
  return Position{*rank, *size};
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

/// What a launcher's variables say about this rank; `local` only if they do.
struct Claim {
  Launcher launcher = Launcher::Alone;
  Position global;
  std::optional<Position> local;
};

std::optional<Claim> rank_variables(const Variables& variables) {
  const auto global = position(variables, "RANK", "WORLD_SIZE");
  if (!global) {
    return std::nullopt;
  }
  const bool supervised = variables.text("SHERD_SUPERVISOR_FD").has_value();
  return Claim{supervised ? Launcher::SherdLaunch : Launcher::Torchrun, *global,
               position(variables, "LOCAL_RANK", "LOCAL_WORLD_SIZE")};
}

std::optional<Claim> open_mpi(const Variables& variables) {
  const auto global = position(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  if (!global) {
    return std::nullopt;
  }
  return Claim{Launcher::OpenMpi, *global,
               position(variables, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")};
}

std::optional<Claim> pmi(const Variables& variables) {
  const bool pmix = variables.text("PMIX_RANK") && !variables.text("PMI_RANK");
  if (pmix && !variables.text("PMI_SIZE")) {
    throw Error(ExitCode::Usage, "PMIX_RANK=" + *variables.text("PMIX_RANK") +
                                     " is set, but PMIx does not set the number of ranks in the "
                                     "environment: set RANK and WORLD_SIZE for each rank");
  }
  const auto global = position(variables, pmix ? "PMIX_RANK" : "PMI_RANK", "PMI_SIZE");
  if (!global) {
    return std::nullopt;
  }
  auto local = position(variables, "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  if (!local) {
    local = position(variables, "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE");
  }
  return Claim{Launcher::Pmi, *global, local};
}

/// Where the process stands in a Slurm job.
enum class SlurmStep {
  None,      ///< no step: a login shell, a batch script
  NotTasks,  ///< the step of a batch script, of an interactive shell, or the one that holds the
             ///< job's adopted processes
  Tasks,     ///< what srun starts
};

SlurmStep slurm_step(const Variables& variables) {
  const auto id = variables.text("SLURM_STEP_ID");
  if (!id) {
    return SlurmStep::None;
  }
  if (*id == "batch" || *id == "extern" || *id == "interactive") {
    return SlurmStep::NotTasks;
  }
  constexpr unsigned long kFirstReserved = 0xfffffff0;  // slurm.h: batch is 0xfffffffb
  unsigned long number = 0;
  const auto [stop, fault] = std::from_chars(id->data(), id->data() + id->size(), number);
  if (fault != std::errc{} || stop != id->data() + id->size()) {
    throw Error(ExitCode::Usage, "SLURM_STEP_ID=" + *id + " is not a step number");
  }
  return number >= kFirstReserved ? SlurmStep::NotTasks : SlurmStep::Tasks;
}

std::optional<Position> slurm_local(const Variables& variables, const Position& global) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto text = variables.text(name);
    const std::vector<int> tasks = text ? expand_tasks_per_node(*text) : std::vector<int>{};
    if (std::accumulate(tasks.begin(), tasks.end(), 0L) != global.size) {
      continue;  // the job's counts, not those of this step
    }
    if (tasks.size() == 1) {
      return global;
    }
    const auto node = variables.integer("SLURM_NODEID", 0, static_cast<int>(tasks.size()) - 1);
    const auto local = variables.integer("SLURM_LOCALID", 0);
    if (node && local && *local < tasks[static_cast<std::size_t>(*node)]) {
      return Position{*local, tasks[static_cast<std::size_t>(*node)]};
    }
  }
  const auto hosts = variables.first_text({"SLURM_STEP_NODELIST", "SLURM_NODELIST"});
  return hosts && expand_host_list(*hosts).size() == 1 ? std::optional(global) : std::nullopt;
}

std::optional<Claim> slurm(const Variables& variables) {
  const bool step_count = variables.text("SLURM_STEP_NUM_TASKS").has_value();
  const auto global =
      position(variables, "SLURM_PROCID", step_count ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  if (!global) {
    return std::nullopt;
  }
  for (const char* other : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const auto size = variables.integer(other, 1);
    if (size && *size != global->size) {
      return std::nullopt;
    }
  }
  return Claim{Launcher::Slurm, *global, slurm_local(variables, *global)};
}

Claim find_claim(const Variables& variables) {
  if (const auto claim = rank_variables(variables)) {
    return *claim;
  }
  const SlurmStep step = slurm_step(variables);
  if (step == SlurmStep::Tasks) {
    if (const auto claim = slurm(variables)) {
      return *claim;
    }
  }
  if (const auto claim = open_mpi(variables)) {
    return *claim;
  }
  // Slurm may give its interactive shell PMI variables; that shell is no rank.
  const auto claim = step == SlurmStep::NotTasks ? std::nullopt : pmi(variables);
  return claim.value_or(Claim{});
}

std::string find_address(const Variables& variables, const RankEnvironment& found) {
  const auto given = variables.text("MASTER_ADDR");
  if (found.all_local && !found.agent_store) {
    return "127.0.0.1";
  }
  if (given) {
    return *given;
  }
  const auto hosts = variables.first_text({"SLURM_STEP_NODELIST", "SLURM_NODELIST"});
  if (found.launcher == Launcher::Slurm && hosts) {
    return expand_host_list(*hosts).front();
  }
  throw Error(ExitCode::Unavailable,
              "rank " + std::to_string(found.rank) + " of " + std::to_string(found.world_size) +
                  " (" + std::string(to_text(found.launcher)) +
                  "): no variable says where rank 0 is, and the ranks may be on several hosts. Set "
                  "MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there (under "
                  "Slurm, SLURM_STEP_NODELIST or SLURM_NODELIST names the host)");
}

/// Returns the launcher's name of the job, the same on all ranks; none if it has no name.
std::optional<std::string> job_name(const Variables& variables, Launcher launcher) {
  switch (launcher) {
    case Launcher::Torchrun:
      return variables.text("TORCHELASTIC_RUN_ID");
    case Launcher::Slurm:
      if (const auto job = variables.text("SLURM_JOB_ID")) {
        return *job + "." + *variables.text("SLURM_STEP_ID");
      }
      return std::nullopt;
    case Launcher::OpenMpi:
    case Launcher::Pmi:
      return variables.first_text({"PMIX_NAMESPACE", "PMI_JOBID", "SLURM_JOB_ID", "PBS_JOBID"});
    case Launcher::SherdLaunch:
    case Launcher::Alone:
      break;
  }
  return std::nullopt;
}

std::uint16_t port_from_job(const std::string& job) {
  std::uint32_t hash = 2166136261;  // FNV-1a, 32 bits
  for (const char c : job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  }
  return static_cast<std::uint16_t>(10000 + hash % 20000);
}

std::uint16_t find_port(const Variables& variables, const RankEnvironment& found) {
  if (const auto port = variables.integer("MASTER_PORT", 1, 65535)) {
    return static_cast<std::uint16_t>(*port);
  }
  const auto job = job_name(variables, found.launcher);
  if (found.launcher != Launcher::Torchrun && job) {  // torchrun sets the port itself
    return port_from_job(*job);
  }
  throw Error(
      ExitCode::Unavailable,
      "rank " + std::to_string(found.rank) + " of " + std::to_string(found.world_size) + " (" +
          std::string(to_text(found.launcher)) +
          "): MASTER_PORT is not set. Set it to a free port on the host of rank 0, the same "
          "for all ranks");
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

std::string_view to_text(Launcher launcher) {
  switch (launcher) {
    case Launcher::SherdLaunch:
      return "sherd launch";
    case Launcher::Torchrun:
      return "torchrun";
    case Launcher::Slurm:
      return "Slurm";
    case Launcher::OpenMpi:
      return "Open MPI";
    case Launcher::Pmi:
      return "PMI";
    case Launcher::Alone:
      break;
  }
  return "alone";
}

namespace {

std::string launch_of(const Variables& variables) {
  const auto run = variables.text("TORCHELASTIC_RUN_ID");
  const auto job = variables.text("SLURM_JOB_ID");
  if (run && *run != "none") {
    return "torchrun " + *run;
  }
  return job ? "Slurm job " + *job : "";
}

bool is_restarted(const Variables& variables) {
  const auto is_above_zero = [&](const char* name) {
    return variables.text(name).value_or("0").find_first_not_of('0') != std::string::npos;
  };
  return is_above_zero("SLURM_RESTART_COUNT") || is_above_zero("TORCHELASTIC_RESTART_COUNT");
}

}  // namespace

RankEnvironment detect(const EnvLookup& get) {
  const Variables variables(get);
  const Claim claim = find_claim(variables);
  RankEnvironment found;
  found.launcher = claim.launcher;
  found.rank = claim.global.rank;
  found.world_size = claim.global.size;
  if (found.launcher == Launcher::SherdLaunch) {
    found.supervisor_fd = variables.integer("SHERD_SUPERVISOR_FD", 0);
    found.master_fd = variables.integer("SHERD_MASTER_FD", 0);
  }
  const auto job = job_name(variables, found.launcher);
  found.ends_with_parent = found.launcher != Launcher::SherdLaunch &&
                           found.launcher != Launcher::Alone &&
                           (found.launcher != Launcher::Torchrun || job.has_value());
  found.job_secret = variables.text("SHERD_JOB_SECRET").value_or(job.value_or(""));
  if (const auto restarts = variables.text("SLURM_RESTART_COUNT");
      restarts && found.launcher == Launcher::Slurm) {
    found.job_secret += "/" + *restarts;  // a requeued job has the number that it had
  }
  found.launch = launch_of(variables);
  found.restarted = is_restarted(variables);
  if (const auto seconds =
          variables.integer("SHERD_TIMEOUT", 1, static_cast<int>(kLongestTimeout.count()))) {
    found.timeout = std::chrono::seconds(*seconds);
  }

  const bool loopback = is_loopback(variables.text("MASTER_ADDR").value_or(""));
  const Position local = claim.local.value_or(loopback ? claim.global : Position{});
  if (local.size > found.world_size) {
    throw Error(
        ExitCode::Usage,
        "this host has more ranks (" + std::to_string(local.size) + ") than the world (" +
            std::to_string(found.world_size) + "), says " + std::string(to_text(found.launcher)) +
            ": check LOCAL_WORLD_SIZE and WORLD_SIZE, or the launcher's own variables for them");
  }
  found.local_rank = local.rank;
  found.local_world_size = local.size;
  found.all_local = loopback || local.size == found.world_size;

  if (found.world_size > 1) {
    found.agent_store = found.launcher == Launcher::Torchrun &&
                        variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    found.master_address = find_address(variables, found);
    found.master_port = find_port(variables, found);
  }
  return found;
}

}  // namespace sherd::launch
