// A diagnosis in words and as JSON.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "files/wrapped_text.h"
#include "llm/doctor/diagnosis.h"

namespace llm::doctor {
namespace {

using nlohmann::ordered_json;

std::string gib(std::uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1U << 30U));
}

// "8 MiB", "23.5 GiB".
std::string size(std::uint64_t bytes) {
  return bytes < std::uint64_t{1} << 30U ? fmt::format("{} MiB", bytes >> 20U) : gib(bytes);
}

// Facts for people, each a name and what there is to say of it, in lines of a terminal.
class Facts {
 public:
  explicit Facts(int columns) : columns_(columns) {}

  void add(const std::string& name, const std::string& text) {
    constexpr int kNames = 15;
    text_ += text_.empty() ? "" : "\n";
    text_ +=
        sherd::files::wrapped(fmt::format("{:<{}} {}", name, kNames - 1, text), columns_, kNames);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  int columns_;
  std::string text_;
};

std::string cores_text(const Processor& processor) {
  return fmt::format(
      "{} usable{}{}, {:.1f} busy", processor.cores,
      processor.physical_cores == processor.cores
          ? ""
          : fmt::format(" (hyperthreads of {})", processor.physical_cores),
      processor.quota_cores ? fmt::format(", {:.1f} cores' time", *processor.quota_cores) : "",
      processor.busy_cores);
}

std::string memory_text(const Memory& memory) {
  return fmt::format("{}, {} available to a run; control group: {}; swap {}; /dev/shm {}",
                     gib(memory.total_bytes), gib(memory.available_bytes),
                     memory.group_limit_bytes ? gib(*memory.group_limit_bytes) : "no limit",
                     gib(memory.swap_bytes),
                     memory.shared_bytes
                         ? gib(*memory.shared_bytes) + " (not needed: ranks share memory without)"
                         : "none (not needed)");
}

std::string limits_text(const std::vector<ProcessLimit>& limits) {
  std::string text;
  for (const ProcessLimit& limit : limits) {
    const std::size_t unit = limit.name.find(" bytes");
    const bool is_size = unit != std::string::npos;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", limit.name.substr(0, unit),
                        !limit.value ? "unlimited"
                        : is_size    ? size(*limit.value)
                                     : std::to_string(*limit.value));
  }
  return text;
}

std::string gpus_text(const Gpus& gpus) {
  std::string text;
  for (const Gpu& gpu : gpus.found) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", gpu.name,
                        gpu.memory_bytes ? " (" + gib(*gpu.memory_bytes) + ")" : "");
  }
  if (!gpus.found.empty() && !gpus.found[0].driver.empty()) {
    text += "; driver " + gpus.found[0].driver;
  }
  return (text.empty() ? "none" : text) + "; " +
         (gpus.usable > 0 ? fmt::format("the program computes on {}; NCCL {}", gpus.usable,
                                        gpus.nccl.empty() ? "not found" : gpus.nccl)
                          : "the program computes on the CPU");
}

std::string interfaces_text(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& one : interfaces) {
    text += fmt::format(
        "{}{} {}{}", text.empty() ? "" : "; ", one.name,
        !one.is_up              ? "down"
        : one.addresses.empty() ? "without an address"
                                : fmt::format("{}", fmt::join(one.addresses, " ")),
        one.megabits_per_second ? fmt::format(" ({} Mbit/s)", *one.megabits_per_second) : "");
  }
  return text.empty() ? "none" : text;
}

template <class Value>
ordered_json or_null(const std::optional<Value>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json json_of(const Processor& processor) {
  return {{"model", processor.model},
          {"cores", processor.cores},
          {"physical_cores", processor.physical_cores},
          {"busy_cores", processor.busy_cores},
          {"quota_cores", or_null(processor.quota_cores)},
          {"instruction_sets", processor.instruction_sets},
          {"best_isa", processor.best_isa},
          {"isa", processor.isa}};
}

ordered_json json_of(const Memory& memory) {
  return {{"total_bytes", memory.total_bytes},
          {"available_bytes", memory.available_bytes},
          {"swap_bytes", memory.swap_bytes},
          {"group_limit_bytes", or_null(memory.group_limit_bytes)},
          {"shared_bytes", or_null(memory.shared_bytes)}};
}

ordered_json json_of(const Gpus& gpus) {
  ordered_json found = ordered_json::array();
  for (const Gpu& gpu : gpus.found) {
    found.push_back(
        {{"name", gpu.name}, {"memory_bytes", or_null(gpu.memory_bytes)}, {"driver", gpu.driver}});
  }
  return {{"found", found},
          {"usable", gpus.usable},
          {"problem", gpus.problem.empty() ? ordered_json() : ordered_json(gpus.problem)},
          {"nccl", gpus.nccl.empty() ? ordered_json() : ordered_json(gpus.nccl)}};
}

ordered_json json_of(const std::vector<Interface>& interfaces) {
  ordered_json all = ordered_json::array();
  for (const Interface& one : interfaces) {
    all.push_back({{"name", one.name},
                   {"up", one.is_up},
                   {"addresses", one.addresses},
                   {"megabits_per_second", or_null(one.megabits_per_second)}});
  }
  return all;
}

}  // namespace

std::string to_text(const Machine& machine, const Diagnosis& diagnosis, int columns) {
  const Processor& processor = machine.processor;
  const HubPlace& hub = machine.hub;
  Facts facts(columns);
  facts.add("processor", processor.model);
  facts.add("cores", cores_text(processor));
  facts.add("instructions",
            fmt::format("{}; path taken: {}", fmt::join(processor.instruction_sets, " "),
                        processor.isa.empty() ? "none" : processor.isa));
  facts.add("memory", memory_text(machine.memory));
  facts.add("limits", limits_text(machine.limits));
  facts.add("GPUs", gpus_text(machine.gpus));
  facts.add("network", interfaces_text(machine.interfaces));
  facts.add("hub cache",
            hub.cache.string() + (hub.free_bytes ? ", " + gib(*hub.free_bytes) + " free" : ""));
  facts.add("variables", hub.variables.empty()
                             ? "no variable of a hub or a proxy is set"
                             : fmt::format("{} set", fmt::join(hub.variables, ", ")));
  facts.add("recommended", fmt::format("-n {}, --device.threads {}, --precision.param_dtype {}",
                                       diagnosis.ranks, diagnosis.threads, diagnosis.param_dtype));
  for (const std::string& why : diagnosis.slow) {
    facts.add("slow", why);
  }
  for (const std::string& fault : diagnosis.faults) {
    facts.add("will not work", fault);
  }
  return facts.text();
}

std::string to_json(const Machine& machine, const Diagnosis& diagnosis) {
  ordered_json limits = ordered_json::object();
  for (const ProcessLimit& limit : machine.limits) {
    limits[limit.name] = or_null(limit.value);
  }
  const ordered_json all = {{"ok", diagnosis.faults.empty()},
                            {"processor", json_of(machine.processor)},
                            {"memory", json_of(machine.memory)},
                            {"limits", std::move(limits)},
                            {"gpus", json_of(machine.gpus)},
                            {"interfaces", json_of(machine.interfaces)},
                            {"hub",
                             {{"cache", machine.hub.cache.string()},
                              {"free_bytes", or_null(machine.hub.free_bytes)},
                              {"variables", machine.hub.variables}}},
                            {"recommended",
                             {{"ranks", diagnosis.ranks},
                              {"threads", diagnosis.threads},
                              {"param_dtype", diagnosis.param_dtype}}},
                            {"slow", diagnosis.slow},
                            {"faults", diagnosis.faults}};
  return all.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace llm::doctor
