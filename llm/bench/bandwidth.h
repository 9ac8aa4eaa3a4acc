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

/// Two ranks that send each other so many bytes, both ways at once.
struct ExchangeRate {
  std::int64_t bytes = 0;  ///< each way
  double seconds = 0;
  double bytes_per_second = 0;  ///< each way
};

struct PairRate {
  int first = 0;
  int second = 0;
  std::string transport;            ///< "shared memory"
  std::vector<ExchangeRate> sizes;  ///< from 4 KiB on; at least one
  /// Of the smallest size, which takes no time to carry.
  [[nodiscard]] double latency_seconds() const { return sizes.front().seconds; }
  /// Of the largest.
  [[nodiscard]] double bytes_per_second() const { return sizes.back().bytes_per_second; }
};

struct Bandwidth {
  int ranks = 0;
  int hosts = 0;
  std::string transport;  ///< of all ranks together
  std::vector<CollectiveRate> collectives;
  std::vector<PairRate> pairs;  ///< those of pair_rounds(), by rank; at least one
};

/// The size at which a job's network is judged.
inline constexpr std::int64_t kJudgedBytes = std::int64_t{64} << 20;

/// Runs the collectives that training uses at sizes from 4 KiB in steps of four, and exchanges
/// between two ranks, from 4 KiB in steps of sixteen as long as one takes seconds at most; the same
/// result on all ranks. An all-gather counts until the bytes have been copied to memory of the
/// rank's own, an all-reduce is a reduce-scatter and an all-gather of its sums. Collective. Takes
/// about five times `most_bytes` of memory a rank. Throws sherd::Error: Usage for one rank alone,
/// OutOfMemory on all ranks where a host has less than that; and as the communicators do.
[[nodiscard]] Bandwidth measure_bandwidth(sherd::World world, const BandwidthOptions& options);

/// The bus bandwidth of an all-gather at kJudgedBytes, or at the largest size below that was
/// measured; bytes a second.
[[nodiscard]] double judged_rate(const Bandwidth& bandwidth);

}  // namespace llm::bench
