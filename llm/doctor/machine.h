#pragma once
// What a run finds on this machine. Everything is read, nothing changed.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llm/doctor/interfaces.h"

namespace llm::doctor {

struct Processor {
  std::string model;
  int cores = 1;                      ///< that this process may run on
  int physical_cores = 1;             ///< of them, hyperthreads of one core counted once
  double busy_cores = 0;              ///< of them, with what others do
  std::optional<double> quota_cores;  ///< of the control group's time; none: no limit
  std::vector<std::string> instruction_sets;
  std::string best_isa;   ///< the processor's, as `sherd bench --json` names paths
  std::string isa;        ///< the one taken; empty where the environment's is not possible
  std::string isa_fault;  ///< why not
};

struct Memory {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;  ///< to a run, all limits considered
  std::uint64_t swap_bytes = 0;
  std::optional<std::uint64_t> group_limit_bytes;  ///< the least of its control groups
  std::optional<std::uint64_t> shared_bytes;       ///< size of /dev/shm
};

/// A limit of this process (`ulimit`); no value: unlimited.
struct ProcessLimit {
  std::string name;
  std::optional<std::uint64_t> value;
};

struct Gpu {
  std::string name;
  std::optional<std::uint64_t> memory_bytes;
  std::string driver;  ///< its version, where it is known
};

struct Gpus {
  std::vector<Gpu> found;  ///< that the driver knows
  int usable = 0;          ///< that the program can compute on here
  std::string problem;     ///< why on none of them; empty: it can
  std::string nccl;        ///< its version; empty in a build without
};

/// The hub's cache, and its variables.
struct HubPlace {
  std::filesystem::path cache;
  std::optional<std::uint64_t> free_bytes;
  std::string fault;                   ///< why nothing can be written there
  std::vector<std::string> variables;  ///< those that are set: their names
};

struct Machine {
  Processor processor;
  Memory memory;
  std::vector<ProcessLimit> limits;
  std::vector<Interface> interfaces;
  Gpus gpus;
  HubPlace hub;
  std::optional<int> threads_asked;  ///< OMP_NUM_THREADS
};

/// Looks around for half a second. What LibTorch's layers know (`best_isa`, `isa`, `isa_fault`,
/// `available_bytes`, of `Gpus` all but `found`) is left to the caller.
[[nodiscard]] Machine look_around();

/// Busy cores among `cores`, from two texts of /proc/stat.
[[nodiscard]] double busy_cores_between(const std::string& before, const std::string& after,
                                        const std::vector<int>& cores);

/// From what nvidia-smi prints when asked for name, memory in MiB and driver, a line a GPU.
[[nodiscard]] std::vector<Gpu> gpus_in(const std::string& answer);

/// Those of the flags of /proc/cpuinfo that matter to operators.
[[nodiscard]] std::vector<std::string> instruction_sets_of(const std::string& cpuinfo);

}  // namespace llm::doctor
