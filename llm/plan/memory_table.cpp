#include "llm/plan/memory_table.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "llm/plan/meta_meter.h"

namespace llm::plan {

namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

constexpr std::array kAll = {Held::Parameters, Held::Masters,       Held::Moments,
                             Held::Gradients,  Held::GatheredUnits, Held::ExchangedGradients,
                             Held::Offloaded,  Held::Activations,   Held::Libraries,
                             Held::Workspaces, Held::Graphs,        Held::Kept};

// Buffers of the engine by the names that it has for them; what is not here is an operator's.
constexpr std::pair<std::string_view, Held> kItems[] = {
    {"travelling shards", Held::Parameters},
    {"master shards", Held::Masters},
    {"optimizer state", Held::Moments},
    {"gradient shards", Held::Gradients},
    {"unsharded gradients", Held::Gradients},
    {"gathered parameters", Held::GatheredUnits},
    {"shards kept after forward", Held::GatheredUnits},
    {"gradients to be reduced", Held::ExchangedGradients},
    {"gradients to be received", Held::ExchangedGradients},
    {kOffloadItem, Held::Offloaded},
    {kLibrariesItem, Held::Libraries},
    {kWorkspacesItem, Held::Workspaces},
    {kGraphsItem, Held::Graphs},
    {kKeptItem, Held::Kept}};

// A unit for all of a table's numbers.
struct Unit {
  const char* name;
  std::int64_t bytes;
  int decimals;
};

Unit unit_for(std::int64_t bytes) {
  return bytes >= 1024 * kMebibyte ? Unit{"GiB", 1024 * kMebibyte, 1} : Unit{"MiB", kMebibyte, 0};
}

std::string in_unit(std::int64_t bytes, const Unit& unit) {
  return fmt::format("{:.{}f}", static_cast<double>(bytes) / static_cast<double>(unit.bytes),
                     unit.decimals);
}

template <class BytesOf>
std::string line_of(const std::string& name, const MemoryPlan& plan, const Unit& unit,
                    const BytesOf& bytes_in) {
  std::string line = fmt::format("\n  {:<27}", name);
  for (const PhasePlan& phase : plan.phases) {
    const std::int64_t bytes = bytes_in(phase);
    line += fmt::format("  {:>{}}", bytes == 0 ? "-" : in_unit(bytes, unit),
                        std::max<std::size_t>(phase.name.size(), 6));
  }
  return line;
}

}  // namespace

Held held_for(const std::string& item) {
  const auto* const found = std::find_if(std::begin(kItems), std::end(kItems),
                                         [&](const auto& known) { return known.first == item; });
  return found == std::end(kItems) ? Held::Activations : found->second;
}

std::string name_of(Held held, const Weights& weights) {
  switch (held) {
    case Held::Parameters:
      return "parameters, " + weights.dtype;
    case Held::Masters:
      if (weights.split_masters) {
        return "low halves of masters";
      }
      return weights.dtype == "float32" ? "parameters, float32" : "float32 masters";
    case Held::Moments:
      return "AdamW's moments";
    case Held::Gradients:
      return "gradients";
    case Held::GatheredUnits:
      return "gathered units";
    case Held::ExchangedGradients:
      return "gradients to be exchanged";
    case Held::Offloaded:
      return "slots for offloading";
    case Held::Activations:
      return "activations";
    case Held::Libraries:
      return kLibrariesItem;
    case Held::Workspaces:
      return kWorkspacesItem;
    case Held::Graphs:
      return kGraphsItem;
    case Held::Kept:
      return "free, kept by the allocator";
  }
  return "";
}

std::int64_t bytes_of(const PhasePlan& phase, Held held) {
  std::int64_t bytes = 0;
  for (const auto& [item, of_item] : phase.items) {
    bytes += held_for(item) == held ? of_item : 0;
  }
  return bytes;
}

Held largest_of(const PhasePlan& phase) {
  return *std::max_element(kAll.begin(), std::prev(kAll.end()),
                           [&](Held a, Held b) { return bytes_of(phase, a) < bytes_of(phase, b); });
}

std::string largest_activations(const PhasePlan& phase) {
  constexpr std::size_t kNamed = 4;
  constexpr std::int64_t kLeastShare = 50;  // 2 % of what the phase holds
  constexpr std::string_view kOfLibTorch = "aten::";
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const auto& [item, bytes] : phase.items) {
    if (held_for(item) == Held::Activations && kLeastShare * bytes >= phase.total_bytes) {
      found.emplace_back(bytes,
                         item.starts_with(kOfLibTorch) ? item.substr(kOfLibTorch.size()) : item);
    }
  }
  std::sort(found.rbegin(), found.rend());
  found.resize(std::min(found.size(), kNamed));
  std::vector<std::string> named;
  for (const auto& [bytes, item] : found) {
    const Unit unit = unit_for(bytes);
    named.push_back(fmt::format("{} {} {}", item, in_unit(bytes, unit), unit.name));
  }
  return fmt::format("{}", fmt::join(named, ", "));
}

std::string memory_table(const MemoryPlan& plan, const Weights& weights) {
  const Unit unit = unit_for(plan.peak_bytes);
  std::string text = fmt::format("{:<29}", fmt::format("peak per rank, {}:", unit.name));
  for (const PhasePlan& phase : plan.phases) {
    text += fmt::format("  {:>6}", phase.name);
  }
  for (const Held held : kAll) {
    const auto bytes_in = [&](const PhasePlan& phase) { return bytes_of(phase, held); };
    if (std::any_of(plan.phases.begin(), plan.phases.end(),
                    [&](const PhasePlan& phase) { return bytes_in(phase) != 0; })) {
      text += line_of(name_of(held, weights), plan, unit, bytes_in);
    }
  }
  return text + line_of("total", plan, unit, [](const PhasePlan& of) { return of.total_bytes; });
}

}  // namespace llm::plan
