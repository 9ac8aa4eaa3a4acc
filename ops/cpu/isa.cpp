#include "ops/cpu/isa.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <utility>

#include <ATen/cpu/Utils.h>

#include "sherd/error.h"

namespace sherd::ops::cpu {
namespace {

constexpr std::array<const char*, kIsaCount> kNames = {"none", "avx2", "avx512", "avx512_bf16",
                                                       "amx"};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Isa limit_of_aten(const std::string& value) {
  const std::string name = lower(value);
  return name == "default" ? Isa::None : name == "avx2" ? Isa::Avx2 : Isa::Amx;
}

// oneDNN's names, of which every later one of a family includes the earlier.
Isa limit_of_onednn(const std::string& value) {
  static const std::array<std::pair<const char*, Isa>, 10> kKnown = {{
      {"sse41", Isa::None},
      {"avx", Isa::None},
      {"avx2", Isa::Avx2},
      {"avx2_vnni", Isa::Avx2},
      {"avx2_vnni_2", Isa::Avx2},
      {"avx512_core", Isa::Avx512},
      {"avx512_core_vnni", Isa::Avx512},
      {"avx512_core_bf16", Isa::Avx512Bf16},
      {"avx512_core_fp16", Isa::Avx512Bf16},
      {"avx10_1_512", Isa::Avx512Bf16},
  }};
  const std::string name = lower(value);
  const auto* const found = std::find_if(kKnown.begin(), kKnown.end(),
                                         [&](const auto& known) { return name == known.first; });
  return found == kKnown.end() ? Isa::Amx : found->second;
}

std::string list_up_to(Isa most) {
  std::string list;
  for (int i = 0; i <= static_cast<int>(most); ++i) {
    list += (i == 0 ? "" : ", ") + name_of(static_cast<Isa>(i));
  }
  return list;
}

CpuFeatures features_of_machine() {
  const auto known = at::cpu::get_cpu_capabilities();
  const auto has = [&](const char* name) {
    const auto found = known.find(name);
    return found != known.end() && found->second.isBool() && found->second.toBool();
  };
  CpuFeatures features;
  features.avx2 = has("avx2") && has("fma3") && has("f16c");
  features.avx512 = has("avx512_f") && has("avx512_bw") && has("avx512_dq") && has("avx512_vl");
  features.avx512_bf16 = has("avx512_bf16");
  // The operating system grants tiles to a process that asks.
  features.amx = has("amx_tile") && has("amx_bf16") && at::cpu::init_amx();
  return features;
}

// LibTorch takes its word for it, and would end by an illegal instruction.
void refuse_more_than(Isa machine, const std::string& aten) {
  const bool has = aten == "avx512" ? machine >= Isa::Avx512
                   : aten == "avx2" ? machine >= Isa::Avx2
                                    : true;
  if (!has) {
    throw Error(ExitCode::Usage, "ATEN_CPU_CAPABILITY is \"" + aten +
                                     "\", whose instructions this processor does not have, and "
                                     "LibTorch would use them: unset it");
  }
}

std::atomic<Isa>& isa_in_use() {
  static std::atomic<Isa> used = allowed_isa();
  return used;
}

}  // namespace

std::string name_of(Isa isa) {
  return kNames[static_cast<size_t>(isa)];
}

std::optional<Isa> isa_of(const std::string& name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) {
    return std::nullopt;
  }
  return static_cast<Isa>(found - kNames.begin());
}

Isa best_isa(const CpuFeatures& features) {
  if (!features.avx2) {
    return Isa::None;
  }
  if (!features.avx512) {
    return Isa::Avx2;
  }
  if (!features.avx512_bf16) {
    return Isa::Avx512;
  }
  return features.amx ? Isa::Amx : Isa::Avx512Bf16;
}

IsaLimits IsaLimits::of_environment() {
  const auto value = [](const char* name) -> std::string {
    const char* text = std::getenv(name);
    return text == nullptr ? "" : text;
  };
  const std::string onednn = value("ONEDNN_MAX_CPU_ISA");
  return {value("SHERD_CPU_ISA"), value("ATEN_CPU_CAPABILITY"),
          onednn.empty() ? value("DNNL_MAX_CPU_ISA") : onednn};
}

Isa choose_isa(Isa machine, const IsaLimits& limits) {
  refuse_more_than(machine, limits.aten);
  Isa chosen = machine;
  if (!limits.sherd.empty()) {
    const auto wanted = isa_of(limits.sherd);
    if (!wanted || *wanted > machine) {
      throw Error(ExitCode::Usage,
                  "SHERD_CPU_ISA is \"" + limits.sherd + "\", which " +
                      (wanted ? "this processor cannot run" : "is not the name of a CPU path") +
                      "; on this processor it may be one of: " + list_up_to(machine));
    }
    chosen = *wanted;
  }
  return std::min({chosen, limit_of_aten(limits.aten), limit_of_onednn(limits.onednn)});
}

Isa machine_isa() {
  static const Isa best = best_isa(features_of_machine());
  return best;
}

Isa allowed_isa() {
  return choose_isa(machine_isa(), IsaLimits::of_environment());
}

Isa isa() {
  return isa_in_use().load(std::memory_order_relaxed);
}

std::string isa_name() {
  return name_of(isa());
}

void use_isa(Isa isa) {
  if (isa > machine_isa()) {
    throw Error(ExitCode::Usage, "this processor cannot run the path \"" + name_of(isa) +
                                     "\"; it can run: " + list_up_to(machine_isa()));
  }
  isa_in_use().store(isa, std::memory_order_relaxed);
}

AssumedIsa::AssumedIsa(Isa assumed) : before_(isa()) {
  isa_in_use().store(assumed, std::memory_order_relaxed);
}

AssumedIsa::~AssumedIsa() {
  isa_in_use().store(before_, std::memory_order_relaxed);
}

Isa least_of(const std::vector<std::string>& names) {
  Isa least = Isa::Amx;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    const auto isa = isa_of(names[rank]);
    if (!isa) {
      throw Error(ExitCode::RanksDisagree,
                  "rank " + std::to_string(rank) + " computes on the path \"" + names[rank] +
                      "\", which this version does not know; start the same version on all hosts");
    }
    least = std::min(least, *isa);
  }
  return least;
}

}  // namespace sherd::ops::cpu
