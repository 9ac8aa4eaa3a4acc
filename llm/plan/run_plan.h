#pragma once
// What a run will take: llm::plan, fed from a configuration and its data.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "llm/config/run_config.h"
#include "llm/plan/device.h"
#include "llm/plan/gpu_rates.h"
#include "llm/plan/memory_plan.h"
#include "llm/plan/memory_table.h"
#include "llm/plan/planned_batches.h"
#include "llm/plan/step_time.h"
#include "llm/setup/load_model.h"
#include "ops/as_on_gpus.h"
#include "ops/cpu/isa.h"

namespace llm::plan {

/// Where a run is planned to be.
struct PlannedHosts {
  Device device;
  int hosts = 1;
  int ranks = 1;  ///< of each host
  std::optional<std::int64_t> memory_bytes =
      std::nullopt;  ///< of a GPU, or of a host; else as found
  int threads = 1;   ///< of a rank that computes on the CPU
  std::optional<double> link_gb_per_second = std::nullopt;  ///< between hosts; else assumed
  /// The table of the GPU's kernels; none: the one that was kept or is shipped (plan::rates_of).
  std::optional<GpuRates> gpu_rates = std::nullopt;
};

/// Where the ranks of a world are. Not collective.
[[nodiscard]] PlannedHosts hosts_of(const sherd::World& world);

struct RunPlan {
  std::string model;
  PlannedHosts hosts;
  std::string strategy;  ///< as the configuration has it
  Weights weights;       ///< the same, chosen
  std::string batch;     ///< PlannedBatches::source
  std::int64_t parameters = 0;
  std::int64_t trained = 0;  ///< of these; the others are frozen
  MemoryPlan memory;
  StepTime time = {};
  double tokens_per_second = 0;          ///< of all ranks
  std::string rates = {};                ///< for people: what `time` rests on
  std::int64_t constant_bytes = 0;       ///< of a rank before anything is made
  std::int64_t constant_file_bytes = 0;  ///< of these, pages of files
  std::int64_t reserve_bytes = 0;        ///< of a rank, for what is not planned
  std::int64_t available_bytes = 0;      ///< to a rank; 0: not known
  std::int64_t checkpoint_bytes = 0;
  /// Of the file system on which this host's ranks rest what memory.offload names; none: not known,
  /// or on several.
  std::optional<std::int64_t> disk_available_bytes = std::nullopt;

  /// Whether what rests on the disk has room there.
  [[nodiscard]] bool has_room_on_disk() const {
    return !disk_available_bytes || hosts.ranks * memory.offloaded_bytes <= *disk_available_bytes;
  }
  /// Of a rank at its most.
  [[nodiscard]] std::int64_t needed_bytes() const { return constant_bytes + memory.peak_bytes; }
  [[nodiscard]] bool fits() const {
    return (available_bytes == 0 || needed_bytes() + reserve_bytes <= available_bytes) &&
           has_room_on_disk();
  }
};

/// While it lives, operators on meta take what those of a device take: a GPU multiplies bf16 as it
/// is, whatever the processor beside it can, and weights side by side at once. For a plan on this
/// thread.
class PathOfPlan {
 public:
  explicit PathOfPlan(c10::DeviceType device);

 private:
  std::optional<sherd::ops::cpu::AssumedIsa> assumed_;
  std::optional<sherd::ops::AsOnGpus> as_on_gpus_;
};

/// Not collective. Throws sherd::Error(Usage) for ranks that the strategy or the batch do not fit.
[[nodiscard]] RunPlan plan_run(const config::RunConfig& config, const setup::ModelShape& shape,
                               const PlannedHosts& hosts, const PlannedBatches& batches);

/// What a run took of each rank's memory at its most, beside what a rank takes before it.
struct MeasuredMemory {
  std::vector<std::int64_t> rank_peak_bytes;
};

/// As `sherd plan --json` prints it.
[[nodiscard]] nlohmann::ordered_json json_of(const RunPlan& plan);
/// The same as text, with what was measured.
[[nodiscard]] std::string to_json(const RunPlan& plan,
                                  const std::optional<MeasuredMemory>& measured = std::nullopt);
/// The same for people, in lines.
[[nodiscard]] std::string to_text(const RunPlan& plan);
/// "memory: planned peak 2.1 GiB a rank beside 160 MiB before it, most of it in backward (linear)",
/// and where that is more than there is, that the run may end for want of memory.
[[nodiscard]] std::string planned_line(const RunPlan& plan);
/// Where a run leaves it.
[[nodiscard]] std::string plan_path(const std::string& output);

}  // namespace llm::plan
