#pragma once
// How fast a rank computes: measured once a machine, else assumed.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "llm/plan/device.h"
#include "llm/plan/gpu_rates.h"
#include "llm/plan/operator_watch.h"

namespace llm::plan {

/// What a call of a kind took that computed as much.
struct RatePoint {
  double amount = 0;  ///< as OperatorCall::amount
  double seconds = 0;
};

/// Times of a rank's operators (by OperatorCall::kind), and under kStepKinds of what a step does
/// beside them.
struct Rates {
  std::map<std::string, std::vector<RatePoint>> kinds = {};  ///< by amount, the least first
  double operations_per_second = 0;            ///< of products of kinds that were not measured
  double bytes_per_second = 0;                 ///< of what they and other operators move
  std::string source = {};                     ///< for people: where they are from
  std::optional<GpuRates> gpu = std::nullopt;  ///< of a GPU, by kernel; nothing else counts then

  /// What a call takes: on a GPU its kernels, one after the other; of a kind that was measured by
  /// interpolation of logarithms between two amounts, beyond them in proportion; of others by what
  /// they multiply and what they move.
  [[nodiscard]] double seconds(const OperatorCall& call) const;
};

/// What a step does beside its operators; " float32" or " 16 bits" follows.
namespace step_kind {
inline constexpr const char* kOptimizer = "AdamW::step";        ///< elements of a rank's shards
inline constexpr const char* kClip = "clip_grad_norm";          ///< the same
inline constexpr const char* kExchange = "exchange on a host";  ///< elements of the model
inline constexpr const char* kBetween = "between operators";    ///< operators called
}  // namespace step_kind

/// What carries collectives beside computing. Ranks of a host that share memory have none: what
/// that takes is theirs (step_kind::kExchange).
struct Links {
  double rank_bytes_per_second = 0;  ///< of a rank, to others of its host; 0: no such link
  double host_bytes_per_second = 0;  ///< of a host, to other hosts; 0: no such link
  double latency_seconds = 0;        ///< of a collective without bytes
  std::string source = {};           ///< for people
  /// Of a gather, which goes from rank to rank: from each to the next of its host, and to the next
  /// host.
  double hop_seconds = 0, host_hop_seconds = 0;
  /// Of a rank's device to pinned memory of its host and back, at once; 0: no such link.
  double pinned_bytes_per_second = 0;
};

/// Which rates: of a host's ranks that compute at the same time, each on its threads.
struct RateKey {
  int ranks = 1;
  int threads = 1;
};

/// Those that `sherd bench --calibrate` kept for this processor; none where it was not run. In
/// sherd/rates of the cache folder ($XDG_CACHE_HOME, else ~/.cache). Throws sherd::Error(BadData)
/// for a file that is damaged.
[[nodiscard]] std::optional<Rates> load_rates(const RateKey& key);
/// Throws sherd::Error(CannotWrite) where there is no cache folder.
std::string save_rates(const RateKey& key, const Rates& rates);

/// The table that `sherd bench --calibrate` kept for GPUs of this name (Device::name); none where
/// it was not run. Throws as load_rates().
[[nodiscard]] std::optional<GpuRates> load_gpu_rates(const std::string& device);
/// The same; none for a damaged file, which rates_of() names in its source.
[[nodiscard]] std::optional<GpuRates> readable_gpu_rates(const std::string& device);
/// Throws as save_rates().
std::string save_gpu_rates(const std::string& device, const GpuRates& rates);

/// Those that were kept, else those that are shipped for a GPU, or assumed of a CPU.
[[nodiscard]] Rates rates_of(const Device& device, const RateKey& key);
/// Those of a table.
[[nodiscard]] Rates rates_of_gpu(GpuRates table);
/// What a rank could compute at most.
struct Peak {
  double operations_per_second = 0;  ///< of matrix products
  std::string source = {};           ///< for people
};
/// Of products in `dtype`: of a GPU in 16 bits what its vendor states; of a CPU the fastest product
/// of a linear layer in the rates that were kept, which products reach on it. None where that is
/// not known.
[[nodiscard]] std::optional<Peak> peak_of(const Device& device, const RateKey& key,
                                          c10::ScalarType dtype);
/// Between ranks on devices of a kind, `ranks_of_host` of them on each host; `host_gb_per_second`
/// between hosts where that is known. The link from a GPU to its host is that of `rates`, if they
/// are a GPU's.
[[nodiscard]] Links links_of(const Device& device, int hosts, int ranks_of_host,
                             std::optional<double> host_gb_per_second, const Rates& rates = {});

}  // namespace llm::plan
