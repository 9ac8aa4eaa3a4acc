#include "llm/plan/device_table.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace llm::plan {

namespace {

constexpr std::size_t kGroups = static_cast<std::size_t>(KernelGroup::Other) + 1;
constexpr std::string_view kOperator = "sherd::";
constexpr double kNanoseconds = 1e-9;

struct Pattern {
  std::string_view part;
  KernelGroup group;
};

constexpr Pattern kTransfers[] = {{"Memcpy HtoD", KernelGroup::FromHost},
                                  {"Memcpy DtoH", KernelGroup::ToHost},
                                  {"Memcpy", KernelGroup::DeviceCopies},
                                  {"Memset", KernelGroup::Memset}};

// Sherd's kernels (ops/cuda/kernels, src/kernels/cuda/kernels), by their own name.
constexpr Pattern kOwnKernels[] = {{"sorted_ids", KernelGroup::Embedding},
                                   {"dequantize", KernelGroup::Products},
                                   {"random", KernelGroup::Sums},
                                   {"cross_entropy", KernelGroup::CrossEntropy},
                                   {"embedding", KernelGroup::Embedding},
                                   {"alibi", KernelGroup::Attention},
                                   {"wider_heads", KernelGroup::Attention},
                                   {"attention", KernelGroup::Attention},
                                   {"norm", KernelGroup::Norms},
                                   {"glu", KernelGroup::Activations},
                                   {"gelu", KernelGroup::Activations},
                                   {"rotary", KernelGroup::Activations},
                                   {"adamw", KernelGroup::AdamW},
                                   {"sum", KernelGroup::Sums},
                                   {"squares", KernelGroup::Sums},
                                   {"clip", KernelGroup::Sums},
                                   {"scale", KernelGroup::Sums},
                                   {"to_bfloat16", KernelGroup::Sums},
                                   {"split", KernelGroup::Sums},
                                   {"join", KernelGroup::Sums}};

// Those of libraries, in this order: attention is made of products by CUTLASS too, and LibTorch's
// own kernels name anything in their template arguments.
constexpr Pattern kLibraryKernels[] = {{"nccl", KernelGroup::Nccl},
                                       {"flash", KernelGroup::Attention},
                                       {"fmha", KernelGroup::Attention},
                                       {"sdpa", KernelGroup::Attention},
                                       {"MemEffAttention", KernelGroup::Attention},
                                       {"cudnn::fusion", KernelGroup::Attention},
                                       {"5cudnn6fusion", KernelGroup::Attention},
                                       {"layer_norm", KernelGroup::Norms},
                                       {"rms_norm", KernelGroup::Norms},
                                       {"LayerNorm", KernelGroup::Norms},
                                       {"GammaBeta", KernelGroup::Norms},
                                       {"softmax", KernelGroup::CrossEntropy},
                                       {"SoftMax", KernelGroup::CrossEntropy},
                                       {"nll_loss", KernelGroup::CrossEntropy},
                                       {"embedding", KernelGroup::Embedding},
                                       {"FusedAdam", KernelGroup::AdamW},
                                       {"at::native", KernelGroup::ATen},
                                       {"2at6native", KernelGroup::ATen},
                                       {"at_cuda_detail", KernelGroup::ATen},
                                       {"at::cuda", KernelGroup::ATen},
                                       {"cub::", KernelGroup::ATen},
                                       {"thrust::", KernelGroup::ATen},
                                       {"gemm", KernelGroup::Products},
                                       {"Gemm", KernelGroup::Products},
                                       {"gemv", KernelGroup::Products},
                                       {"nvjet", KernelGroup::Products},
                                       {"cutlass", KernelGroup::Products},
                                       {"cublas", KernelGroup::Products},
                                       {"splitKreduce", KernelGroup::Products}};

// What an operator's kernels are for where their own name does not tell, and where the bytes that
// it moves are counted.
constexpr Pattern kOperators[] = {{"cross_entropy", KernelGroup::CrossEntropy},
                                  {"attention", KernelGroup::Attention},
                                  {"norm", KernelGroup::Norms},
                                  {"glu", KernelGroup::Activations},
                                  {"gelu", KernelGroup::Activations},
                                  {"rotary", KernelGroup::Activations},
                                  {"embedding", KernelGroup::Embedding},
                                  {"index_select", KernelGroup::Embedding}};

template <std::size_t N>
std::optional<KernelGroup> find_group(const Pattern (&patterns)[N], std::string_view name) {
  const auto* const found = std::find_if(
      std::begin(patterns), std::end(patterns),
      [&](const Pattern& pattern) { return name.find(pattern.part) != std::string_view::npos; });
  return found == std::end(patterns) ? std::nullopt : std::optional(found->group);
}

// Of "void sherd::cuda::adamw<sherd::cuda::WholeMasters, …>(…)" the part before its arguments; of a
// mangled name all of it.
std::string_view without_arguments(std::string_view name) {
  return name.substr(0, name.find_first_of("<("));
}

bool is_sherds(std::string_view function) {
  return function.find("sherd::") != std::string_view::npos ||
         function.find("_ZN5sherd") != std::string_view::npos;
}

struct Interval {
  std::int64_t begin_ns;
  std::int64_t end_ns;
};

// How long any of them lasts, in seconds.
double union_seconds(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin_ns < b.begin_ns; });
  std::int64_t covered = 0, end = intervals.empty() ? 0 : intervals.front().begin_ns;
  for (const Interval& interval : intervals) {
    covered += std::max<std::int64_t>(0, interval.end_ns - std::max(end, interval.begin_ns));
    end = std::max(end, interval.end_ns);
  }
  return static_cast<double>(covered) * kNanoseconds;
}

// By the id of each call, the innermost of Sherd's operators that it is in, or is. Others have no
// entry.
std::unordered_map<std::uint64_t, const HostCall*> operators_of(
    const std::vector<HostCall>& calls) {
  std::vector<const HostCall*> sorted;
  for (const HostCall& call : calls) {
    sorted.push_back(&call);
  }
  const auto key = [](const HostCall* call) {
    return std::tuple(call->thread, call->begin_ns, -call->end_ns, call->id);
  };
  std::sort(sorted.begin(), sorted.end(),
            [&](const HostCall* a, const HostCall* b) { return key(a) < key(b); });
  std::unordered_map<std::uint64_t, const HostCall*> operators;
  std::vector<const HostCall*> open;  // Sherd's, the innermost last
  for (const HostCall* call : sorted) {
    while (!open.empty() &&
           (open.back()->thread != call->thread || open.back()->end_ns < call->end_ns)) {
      open.pop_back();
    }
    if (std::string_view(call->name).starts_with(kOperator)) {
      open.push_back(call);
    }
    if (!open.empty()) {
      operators[call->id] = open.back();
    }
  }
  return operators;
}

// What is known of how much a group's activities did, and in which of their seconds.
struct Known {
  double amount = 0;
  double seconds = 0;
};

struct GroupSum {
  std::int64_t calls = 0;
  double seconds = 0;
  std::vector<Interval> intervals;
  Known bytes;
  Known operations;
};

using KernelKey = std::tuple<KernelGroup, std::string, std::string>;  // name, operator

struct KernelSum {
  std::int64_t calls = 0;
  double seconds = 0;
};

// Sums over the activities of some steps.
class Sums {
 public:
  explicit Sums(const RecordedSteps& recorded) : operators_(operators_of(recorded.calls)) {
    for (const DeviceActivity& activity : recorded.activities) {
      add(activity);
    }
    for (const auto& [call, seconds] : seconds_of_calls_) {
      add_amounts(*call, seconds);
    }
  }

  [[nodiscard]] GroupSum& of(KernelGroup group) { return groups_[static_cast<std::size_t>(group)]; }
  [[nodiscard]] const auto& kernels() const { return kernels_; }

 private:
  using GroupSeconds = std::array<double, kGroups>;

  void add(const DeviceActivity& activity) {
    const auto found = operators_.find(activity.launched_by);
    const HostCall* const call = found == operators_.end() ? nullptr : found->second;
    KernelGroup group = group_of(activity.name);
    if (call != nullptr && (group == KernelGroup::ATen || group == KernelGroup::Other)) {
      group = find_group(kOperators, call->name).value_or(group);
    }
    const double seconds =
        static_cast<double>(std::max<std::int64_t>(0, activity.end_ns - activity.begin_ns)) *
        kNanoseconds;
    GroupSum& sum = of(group);
    ++sum.calls;
    sum.seconds += seconds;
    sum.intervals.push_back({activity.begin_ns, activity.end_ns});
    if (activity.bytes > 0) {
      sum.bytes.amount += passes_of(group) * activity.bytes;
      sum.bytes.seconds += seconds;
    }
    KernelSum& kernel = kernels_[{group, activity.name, call == nullptr ? "" : call->name}];
    ++kernel.calls;
    kernel.seconds += seconds;
    if (call != nullptr) {
      seconds_of_calls_[call][static_cast<std::size_t>(group)] += seconds;
    }
  }

  // A copy on the device is read and written there.
  static double passes_of(KernelGroup group) { return group == KernelGroup::DeviceCopies ? 2 : 1; }

  void add_amounts(const HostCall& call, const GroupSeconds& seconds) {
    const std::optional<KernelGroup> own = find_group(kOperators, call.name);
    const auto note = [&](Known GroupSum::*known, KernelGroup group, double amount) {
      if (const double there = seconds[static_cast<std::size_t>(group)]; amount > 0 && there > 0) {
        (of(group).*known).amount += amount;
        (of(group).*known).seconds += there;
      }
    };
    note(&GroupSum::operations,
         own == KernelGroup::Attention ? KernelGroup::Attention : KernelGroup::Products,
         call.operations);
    if (own) {
      note(&GroupSum::bytes, *own, call.moved_bytes);
    }
  }

  std::unordered_map<std::uint64_t, const HostCall*> operators_;
  std::array<GroupSum, kGroups> groups_;
  std::map<KernelKey, KernelSum> kernels_;
  std::unordered_map<const HostCall*, GroupSeconds> seconds_of_calls_;
};

bool crosses_to_host(KernelGroup group) {
  return group == KernelGroup::FromHost || group == KernelGroup::ToHost;
}

// Writes the amount per step to `amount` and returns its share of the limit, where enough is known.
std::optional<double> share_of(const Known& known, const GroupSum& sum, int steps, double limit,
                               std::optional<double>& amount) {
  constexpr double kEnough = 0.9;
  if (known.amount <= 0 || known.seconds < kEnough * sum.seconds) {
    return std::nullopt;
  }
  amount = known.amount / steps;
  return limit > 0 && known.seconds > 0 ? std::optional(known.amount / known.seconds / limit)
                                        : std::nullopt;
}

DeviceGroup row_of(KernelGroup group, const GroupSum& sum, int steps, const DeviceLimits& limits) {
  DeviceGroup row{.group = group,
                  .calls = static_cast<double>(sum.calls) / steps,
                  .seconds = sum.seconds / steps};
  const double bytes_limit =
      crosses_to_host(group) ? limits.host_bytes_per_second : limits.bytes_per_second;
  const auto of_bytes = share_of(sum.bytes, sum, steps, bytes_limit, row.bytes);
  const auto of_operations =
      share_of(sum.operations, sum, steps, limits.operations_per_second, row.operations);
  row.share_of_limit = std::max(of_bytes, of_operations);
  return row;
}

std::vector<DeviceKernel> longest(const std::map<KernelKey, KernelSum>& kernels, int steps) {
  constexpr int kShownOfGroup = 6;
  std::vector<DeviceKernel> all, found;
  for (const auto& [key, sum] : kernels) {
    const auto& [group, name, launched_by] = key;
    all.push_back(
        {group, name, launched_by, static_cast<double>(sum.calls) / steps, sum.seconds / steps});
  }
  std::stable_sort(all.begin(), all.end(), [](const DeviceKernel& a, const DeviceKernel& b) {
    return a.seconds > b.seconds;
  });
  std::array<int, kGroups> shown = {};
  for (DeviceKernel& kernel : all) {
    if (shown[static_cast<std::size_t>(kernel.group)]++ < kShownOfGroup) {
      found.push_back(std::move(kernel));
    }
  }
  return found;
}

Interval whole_of(const std::vector<DeviceActivity>& activities) {
  Interval whole{activities.front().begin_ns, activities.front().end_ns};
  for (const DeviceActivity& activity : activities) {
    whole.begin_ns = std::min(whole.begin_ns, activity.begin_ns);
    whole.end_ns = std::max(whole.end_ns, activity.end_ns);
  }
  return whole;
}

// Why it makes no table; empty: it makes one.
std::string problem_of(const RecordedSteps& recorded) {
  if (recorded.activities.empty()) {
    return "the profiler recorded nothing on the device. The driver may allow it to administrators "
           "alone (NVreg_RestrictProfilingToAdminUsers=1: run as root, or ask for 0), another "
           "profiler may hold CUPTI, or this LibTorch was built without CUPTI. KINETO_LOG_LEVEL=0 "
           "shows what CUPTI answers.";
  }
  const std::int64_t end_ns = whole_of(recorded.activities).end_ns;
  const bool is_cut =
      std::any_of(recorded.calls.begin(), recorded.calls.end(), [&](const HostCall& call) {
        return std::string_view(call.name).starts_with(kOperator) && call.begin_ns > end_ns;
      });
  return is_cut ? "the profiler recorded operators and not the kernels that they launched: its "
                  "buffer for a device is full after some hundred thousand kernels. Record fewer "
                  "steps, or give a step fewer micro-batches."
                : "";
}

std::string amount_of(const DeviceGroup& row) {
  constexpr double kTera = 1e12, kGiga = 1e9;
  return row.operations ? fmt::format("{:.4g} TFLOP", *row.operations / kTera)
         : row.bytes    ? fmt::format("{:.4g} GB", *row.bytes / kGiga)
                        : "";
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", share * 100);
}

std::string in_ms(double seconds) {
  return fmt::format("{:.3f}", seconds * 1e3);
}

std::string line_of(std::string_view name, std::string_view calls, std::string_view ms,
                    std::string_view share, std::string_view amount, std::string_view limit) {
  std::string line = fmt::format("  {:<22} {:>9} {:>11} {:>9} {:>14} {:>11}", name, calls, ms,
                                 share, amount, limit);
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

nlohmann::ordered_json number_or_null(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

}  // namespace

DeviceLimits limits_of(const Device& device, c10::ScalarType dtype,
                       const std::optional<GpuRates>& calibrated) {
  constexpr double kTera = 1e12;
  if (!calibrated && device.peak_operations_per_second == 0) {
    return {};
  }
  const GpuRates rates = calibrated ? *calibrated : shipped_rates_of(device);
  double teraflops = 0;
  for (const auto& [kernel, figure] : rates.products) {
    teraflops = std::max(teraflops, figure.teraflops);
  }
  return {.operations_per_second = dtype == c10::kFloat ? 0 : teraflops * kTera,
          .bytes_per_second = rates.copy_bytes_per_second,
          .host_bytes_per_second = rates.pinned_bytes_per_second};
}

const char* name_of(KernelGroup group) {
  constexpr std::array<const char*, kGroups> kNames = {"products",
                                                       "attention",
                                                       "norms",
                                                       "activations and rotary",
                                                       "cross-entropy",
                                                       "embedding",
                                                       "AdamW",
                                                       "sums, clip, casts",
                                                       "copies from the host",
                                                       "copies to the host",
                                                       "copies on the device",
                                                       "memset",
                                                       "NCCL",
                                                       "other ATen",
                                                       "other"};
  return kNames[static_cast<std::size_t>(group)];
}

KernelGroup group_of(std::string_view activity) {
  if (const auto transfer = find_group(kTransfers, activity.substr(0, activity.find('(')))) {
    return *transfer;
  }
  const std::string_view function = without_arguments(activity);
  return (is_sherds(function) ? find_group(kOwnKernels, function)
                              : find_group(kLibraryKernels, activity))
      .value_or(KernelGroup::Other);
}

DeviceTable no_device_table(std::string problem) {
  DeviceTable table;
  table.problem = std::move(problem);
  return table;
}

DeviceTable device_table(const RecordedSteps& recorded, int steps, const DeviceLimits& limits,
                         const KnownBytes& known_bytes) {
  if (std::string problem = problem_of(recorded); !problem.empty()) {
    return no_device_table(std::move(problem));
  }
  Sums sums(recorded);
  DeviceTable table{.steps = steps};
  const Interval whole = whole_of(recorded.activities);
  table.step_seconds = union_seconds({whole}) / steps;
  std::vector<Interval> all, computing;
  for (std::size_t i = 0; i < kGroups; ++i) {
    const auto group = static_cast<KernelGroup>(i);
    GroupSum& sum = sums.of(group);
    if (sum.calls == 0) {
      continue;
    }
    if (const auto known = known_bytes.find(group); known != known_bytes.end()) {
      sum.bytes = {known->second * steps, sum.seconds};
    }
    all.insert(all.end(), sum.intervals.begin(), sum.intervals.end());
    if (!crosses_to_host(group)) {
      computing.insert(computing.end(), sum.intervals.begin(), sum.intervals.end());
    }
    DeviceGroup row = row_of(group, sum, steps, limits);
    row.share_of_step = table.step_seconds > 0
                            ? union_seconds(std::move(sum.intervals)) / steps / table.step_seconds
                            : 0;
    table.sum_seconds += row.seconds;
    table.groups.push_back(std::move(row));
  }
  std::stable_sort(
      table.groups.begin(), table.groups.end(),
      [](const DeviceGroup& a, const DeviceGroup& b) { return a.seconds > b.seconds; });
  table.busy_seconds = union_seconds(std::move(all)) / steps;
  table.idle_seconds = table.step_seconds - union_seconds(std::move(computing)) / steps;
  table.kernels = longest(sums.kernels(), steps);
  return table;
}

std::vector<std::string> lines_of(const DeviceTable& table) {
  if (!table.problem.empty()) {
    return {"no table of device time: " + table.problem};
  }
  constexpr std::size_t kNameShown = 100;
  std::vector<std::string> lines = {
      fmt::format("device time per step, the mean of {} recorded: {} ms", table.steps,
                  in_ms(table.step_seconds)),
      line_of("group", "calls", "ms", "of step", "amount", "of limit")};
  for (const DeviceGroup& row : table.groups) {
    lines.push_back(line_of(name_of(row.group), fmt::format("{:.1f}", row.calls),
                            in_ms(row.seconds), percent(row.share_of_step), amount_of(row),
                            row.share_of_limit ? percent(*row.share_of_limit) : ""));
  }
  const double idle_share = table.step_seconds > 0 ? table.idle_seconds / table.step_seconds : 0;
  lines.push_back(line_of("idle", "", in_ms(table.idle_seconds), percent(idle_share), "", ""));
  lines.push_back(
      fmt::format("  sum of all rows but idle: {} ms; time in which any of them ran: "
                  "{} ms",
                  in_ms(table.sum_seconds), in_ms(table.busy_seconds)));
  for (const DeviceKernel& kernel : table.kernels) {
    if (kernel.group == KernelGroup::Other) {
      lines.push_back(fmt::format("  other: {} ms, {:.1f} calls: {}", in_ms(kernel.seconds),
                                  kernel.calls, kernel.name.substr(0, kNameShown)));
    }
  }
  return lines;
}

nlohmann::ordered_json json_of(const DeviceTable& table) {
  const bool is_there = table.problem.empty();
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const DeviceGroup& row : table.groups) {
    groups.push_back({{"group", name_of(row.group)},
                      {"calls", row.calls},
                      {"seconds", row.seconds},
                      {"share_of_step", row.share_of_step},
                      {"bytes", number_or_null(row.bytes)},
                      {"operations", number_or_null(row.operations)},
                      {"share_of_limit", number_or_null(row.share_of_limit)}});
  }
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const DeviceKernel& kernel : table.kernels) {
    kernels.push_back({{"group", name_of(kernel.group)},
                       {"name", kernel.name},
                       {"launched_by", kernel.launched_by},
                       {"calls", kernel.calls},
                       {"seconds", kernel.seconds}});
  }
  const auto seconds = [&](double value) {
    return number_or_null(is_there ? std::optional(value) : std::nullopt);
  };
  return {{"device_groups", std::move(groups)},
          {"device_idle_seconds", seconds(table.idle_seconds)},
          {"device_step_seconds", seconds(table.step_seconds)},
          {"device_kernels", std::move(kernels)},
          {"device_problem",
           is_there ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(table.problem)}};
}

}  // namespace llm::plan
