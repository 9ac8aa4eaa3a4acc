#pragma once
// Where the time of steps goes on a device, by groups of kernels.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include "llm/plan/device.h"
#include "llm/plan/gpu_rates.h"

namespace llm::plan {

/// A kernel, a copy or a memset, as the profiler saw it on the device. Kernels of a captured graph
/// are activities like others.
struct DeviceActivity {
  std::string name;  ///< demangled where the profiler could; copies are "Memcpy …"
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::uint64_t launched_by = 0;  ///< HostCall::id of the innermost operator; 0: not known
  double bytes = 0;               ///< size of a copy or memset; 0 for kernels
};

/// A call of an operator on a host thread.
struct HostCall {
  std::string name;
  std::uint64_t id = 0;
  std::uint64_t thread = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  double operations = 0;   ///< of its matrix products (plan::product_operations()); 0: not known
  double moved_bytes = 0;  ///< plan::moved_bytes(); 0: none, or not known
};

/// What a profiler recorded of whole steps.
struct RecordedSteps {
  std::vector<DeviceActivity> activities;
  std::vector<HostCall> calls;
};

/// The most that a device does in a second; 0: not known.
struct DeviceLimits {
  double operations_per_second = 0;  ///< in matrix products of the dtype that a run computes in
  double bytes_per_second = 0;       ///< that a kernel reads and writes
  double host_bytes_per_second = 0;  ///< of copies between host and device, each way
};

/// Returns the limits of a GPU as plans take them: of the fastest product, the copy and the link in
/// `calibrated`, else in the table that is shipped for it. All are 0 for a CPU, and for a GPU that
/// has neither. Products have a limit in 16 bits alone.
[[nodiscard]] DeviceLimits limits_of(const Device& device, c10::ScalarType dtype,
                                     const std::optional<GpuRates>& calibrated = std::nullopt);

/// Groups that kernels are counted in. `Other`: kernels whose name says nothing that is known.
enum class KernelGroup {
  Products,
  Attention,
  Norms,
  Activations,
  CrossEntropy,
  Embedding,
  AdamW,
  Sums,
  FromHost,
  ToHost,
  DeviceCopies,
  Memset,
  Nccl,
  ATen,
  Other
};
/// "products", "copies from the host" and so on: as tables and JSON have it.
[[nodiscard]] const char* name_of(KernelGroup group);

/// The group of an activity by its name alone, demangled, mangled or cut off at the end.
[[nodiscard]] KernelGroup group_of(std::string_view activity);

/// One row of a DeviceTable, per step.
struct DeviceGroup {
  KernelGroup group = KernelGroup::Other;
  double calls = 0;
  double seconds = 0;        ///< sum over its activities; those that overlap count each
  double share_of_step = 0;  ///< of the time in which any of its activities ran
  /// What its operators must read and write, or multiply. None where operators whose arguments are
  /// known launched less than nine tenths of `seconds`.
  std::optional<double> bytes = std::nullopt;
  std::optional<double> operations = std::nullopt;
  std::optional<double> share_of_limit =
      std::nullopt;  ///< of DeviceLimits, while its activities ran
};

/// A kernel by its name and by what launched it, per step.
struct DeviceKernel {
  KernelGroup group = KernelGroup::Other;
  std::string name;
  std::string launched_by;  ///< the innermost operator of Sherd's; empty: none that is known
  double calls = 0;
  double seconds = 0;
};

/// Device time of a step: the mean of the steps that were recorded.
struct DeviceTable {
  int steps = 0;            ///< that were recorded
  double step_seconds = 0;  ///< from the first activity's begin to the last one's end, per step
  double idle_seconds = 0;  ///< in which nothing ran but copies between host and device
  double sum_seconds = 0;   ///< of all activities
  double busy_seconds = 0;  ///< in which any activity ran
  std::vector<DeviceGroup> groups = {};    ///< the longest first; empty where there is a `problem`
  std::vector<DeviceKernel> kernels = {};  ///< the longest first, at most six of each group
  std::string problem = {};                ///< why there is no table, for people; else empty
};

/// Amounts per step that no recorded operator has, by group.
using KnownBytes = std::map<KernelGroup, double>;

/// The table of `steps` ≥ 1 recorded steps. Activities are joined with the innermost operator of
/// Sherd's that launched them, whose arguments say how much was computed. Pure: it asks no device.
[[nodiscard]] DeviceTable device_table(const RecordedSteps& recorded, int steps,
                                       const DeviceLimits& limits,
                                       const KnownBytes& known_bytes = {});

/// A table that says only why there is none.
[[nodiscard]] DeviceTable no_device_table(std::string problem);

/// Lines for people, without line ends: the table, or why there is none.
[[nodiscard]] std::vector<std::string> lines_of(const DeviceTable& table);
/// {device_groups, device_idle_seconds, device_step_seconds, device_kernels,
/// device_problem}; numbers that are not known are null.
[[nodiscard]] nlohmann::ordered_json json_of(const DeviceTable& table);

}  // namespace llm::plan
