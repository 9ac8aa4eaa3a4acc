#pragma once
// The path of the processor: which loops and which forms of matrix products the operators use.

#include <optional>
#include <string>
#include <vector>

namespace sherd::ops::cpu {

/// Each can do what those before it can.
enum class Isa {
  None,        ///< no vector loops: x86 before AVX2, other processors
  Avx2,        ///< AVX2 with FMA and F16C; products in fp32
  Avx512,      ///< AVX-512 F, BW, DQ, VL; products in fp32
  Avx512Bf16,  ///< also products of bf16
  Amx,         ///< also tiles of bf16
};
inline constexpr int kIsaCount = 5;

/// "none", "avx2", "avx512", "avx512_bf16", "amx": as SHERD_CPU_ISA and `sherd bench --json` have
/// it.
[[nodiscard]] std::string name_of(Isa isa);
[[nodiscard]] std::optional<Isa> isa_of(const std::string& name);

/// What a processor and its operating system offer.
struct CpuFeatures {
  bool avx2 = false;    ///< with FMA and F16C
  bool avx512 = false;  ///< F, BW, DQ and VL
  bool avx512_bf16 = false;
  bool amx = false;  ///< tiles and their bf16
};
/// The best path with those features.
[[nodiscard]] Isa best_isa(const CpuFeatures& features);

/// Values of the environment variables that limit the choice; empty where not set.
struct IsaLimits {
  std::string sherd;   ///< SHERD_CPU_ISA: a name_of()
  std::string aten;    ///< ATEN_CPU_CAPABILITY: "default", "avx2" or "avx512"
  std::string onednn;  ///< ONEDNN_MAX_CPU_ISA: "AVX2", "AVX512_CORE" …
  [[nodiscard]] static IsaLimits of_environment();
};

/// The least of `machine` and the limits. A name that LibTorch or oneDNN does not know limits
/// nothing, as for them. Throws sherd::Error (Usage) for a SHERD_CPU_ISA that is none or above
/// `machine`, and for an ATEN_CPU_CAPABILITY above it, which LibTorch would take at its word.
[[nodiscard]] Isa choose_isa(Isa machine, const IsaLimits& limits);

/// This machine's best path, whatever the environment says.
[[nodiscard]] Isa machine_isa();

/// What this process may use: choose_isa() of this machine and the environment.
[[nodiscard]] Isa allowed_isa();

/// The path in use: choose_isa() of this machine and the environment at the first call, or what
/// use_isa() said since. Throws as choose_isa().
[[nodiscard]] Isa isa();
[[nodiscard]] std::string isa_name();

/// Sets the path for this process, such as the least of all ranks'. To be called before the first
/// operator, and never between a forward and its backward. Throws sherd::Error (Usage) for one
/// above the machine's.
void use_isa(Isa isa);

/// On the meta device, operators allocate as on a processor of this path while it lives, whatever
/// this machine has. Nothing is to be computed meanwhile.
class AssumedIsa {
 public:
  explicit AssumedIsa(Isa isa);
  ~AssumedIsa();
  AssumedIsa(const AssumedIsa&) = delete;
  AssumedIsa& operator=(const AssumedIsa&) = delete;

 private:
  Isa before_;
};

/// What ranks with these paths can all do, so that all compute alike: the least of isa_name() of
/// each. Throws sherd::Error (RanksDisagree) for a name that no path has, as another version of
/// the program on a host could give.
[[nodiscard]] Isa least_of(const std::vector<std::string>& names);

}  // namespace sherd::ops::cpu
