#include "llm/doctor/diagnosis.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace llm::doctor {
namespace {

constexpr double kBusy = 0.5;  // below that many cores, what others do is not worth a word
constexpr int kMostRanks = 4;  // more cores become threads: more ranks hold more activations
constexpr std::uint64_t kLeastBytes = std::uint64_t{512} << 20;
constexpr std::uint64_t kFewBytes = std::uint64_t{4} << 30;

bool multiplies_bf16(const std::string& isa) {
  return isa == "avx512_bf16" || isa == "amx";
}

// What a run can count on.
double free_cores(const Processor& processor) {
  const double given = std::min<double>(processor.physical_cores,
                                        processor.quota_cores.value_or(processor.physical_cores));
  return std::max(1.0, given - (processor.busy_cores < kBusy ? 0 : processor.busy_cores));
}

void look_at_processor(const Processor& processor, Diagnosis& found) {
  if (!processor.isa_fault.empty()) {
    found.faults.push_back(processor.isa_fault);
  } else if (processor.isa != processor.best_isa) {
    found.slow.push_back(
        fmt::format("the processor supports the path {}, and a variable limits it to {}: check "
                    "SHERD_CPU_ISA, ATEN_CPU_CAPABILITY and ONEDNN_MAX_CPU_ISA",
                    processor.best_isa, processor.isa));
  }
  if (processor.best_isa == "none") {
    found.slow.push_back("the processor has no AVX2: operators use LibTorch's scalar loops");
  } else if (!multiplies_bf16(processor.best_isa)) {
    found.slow.push_back(
        "the processor has no instructions for bf16: float32 is faster here, and "
        "takes twice the memory for gathered parameters and activations");
  }
  if (processor.busy_cores >= kBusy) {
    found.slow.push_back(fmt::format(
        "{:.1f} of {} cores are busy with other work: ranks wait for the slowest of them",
        processor.busy_cores, processor.cores));
  }
  if (processor.quota_cores && *processor.quota_cores < processor.cores) {
    found.slow.push_back(
        fmt::format("the control group allows the time of {:.1f} of {} cores: with more threads "
                    "all of them are throttled",
                    *processor.quota_cores, processor.cores));
  }
}

void look_at_memory(const Memory& memory, Diagnosis& found) {
  const double gib = static_cast<double>(memory.available_bytes) / (1U << 30U);
  if (memory.available_bytes < kLeastBytes) {
    found.faults.push_back(
        fmt::format("{:.2f} GiB of memory are available: a rank takes 0.3 GiB "
                    "before it has a model. End other work, or raise the limit",
                    gib));
  } else if (memory.available_bytes < kFewBytes) {
    found.slow.push_back(
        fmt::format("{:.1f} GiB of memory are available: `sherd plan RECIPE` says "
                    "whether a run fits",
                    gib));
  }
}

void look_at_network(const std::vector<Interface>& interfaces, Diagnosis& found) {
  const bool has_loopback = std::any_of(
      interfaces.begin(), interfaces.end(),
      [](const Interface& one) { return one.is_loopback && one.is_up && !one.addresses.empty(); });
  if (!has_loopback) {
    found.faults.push_back(
        "no loopback interface is up: ranks of one host cannot connect. As root: ip link set lo "
        "up");
  }
}

// Recommendations are for the program, which computes on CPUs.
void look_at_gpus(const Gpus& gpus, Diagnosis& found) {
  if (!gpus.found.empty() && gpus.usable == 0) {
    found.slow.push_back("GPUs are left idle: " + gpus.problem);
  }
}

}  // namespace

Diagnosis diagnose(const Machine& machine) {
  Diagnosis found;
  look_at_processor(machine.processor, found);
  look_at_memory(machine.memory, found);
  look_at_network(machine.interfaces, found);
  look_at_gpus(machine.gpus, found);
  if (!machine.hub.fault.empty()) {
    found.faults.push_back("sherd fetch: " + machine.hub.fault +
                           ". Set HF_HUB_CACHE to a folder that can be written to");
  }
  found.param_dtype = multiplies_bf16(machine.processor.isa) ? "bfloat16" : "float32";
  const int cores = static_cast<int>(std::floor(free_cores(machine.processor)));
  found.ranks = std::min(cores, kMostRanks);
  found.threads = cores / found.ranks;
  if (machine.threads_asked && *machine.threads_asked * found.ranks > machine.processor.cores) {
    found.slow.push_back(
        fmt::format("OMP_NUM_THREADS={} for each of {} ranks is more than {} "
                    "cores: threads take turns",
                    *machine.threads_asked, found.ranks, machine.processor.cores));
  }
  return found;
}

}  // namespace llm::doctor
