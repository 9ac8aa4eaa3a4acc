#pragma once
// What ranks exchange in a second: `sherd bandwidth`.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sherd/world.h"

namespace llm::bench {

struct BandwidthOptions {
  std::int64_t most_bytes = std::int64_t{256} << 20;  ///< of the largest tensor
  std::function<void(const std::string&)> progress = [](const std::string& /*line*/) {};
};

/// One collective over all ranks on tensors of one size, in fp32.
struct CollectiveRate {
  std::string operation;   ///< "all-gather", "reduce-scatter", "all-reduce"
  std::int64_t bytes = 0;  ///< of the whole tensor
  double seconds = 0;      ///< of one, on the slowest rank
  /// What each rank's link carries, as nccl-tests define it: bytes ÷ seconds × (n - 1) ÷ n, twice
  /// that for an all-reduce.
  double bus_bytes_per_second = 0;
};

/// Two ranks that exchange with each other, both ways at once.
struct PairRate {
  int first = 0;
  int second = 0;
  double latency_seconds = 0;   ///< of an exchange of 4 KiB
  double bytes_per_second = 0;  ///< each way
};

struct Bandwidth {
  int ranks = 0;
  int hosts = 0;
  std::string transport;  ///< of all ranks together
  std::vector<CollectiveRate> collectives;
  /// Of all ranks where they are on one host, else of the first rank of each host.
  std::vector<PairRate> pairs;
};

/// The size at which a job's network is judged.
inline constexpr std::int64_t kJudgedBytes = std::int64_t{64} << 20;

/// Runs the collectives that training uses at sizes from 4 KiB in steps of four, and an exchange
/// between each two ranks; the same result on all ranks. An all-gather counts until the bytes have
/// been copied to memory of the rank's own, an all-reduce is a reduce-scatter and an all-gather of
/// its sums. Collective. Takes about five times `most_bytes` of memory a rank. Throws
/// sherd::Error(Usage) for one rank alone, and as the communicators do.
[[nodiscard]] Bandwidth measure_bandwidth(sherd::World world, const BandwidthOptions& options);

/// The bus bandwidth of an all-gather at kJudgedBytes, or at the largest size below that was
/// measured; bytes a second.
[[nodiscard]] double judged_rate(const Bandwidth& bandwidth);

}  // namespace llm::bench
