#include "llm/bench/bandwidth.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "llm/bench/pair_rounds.h"
#include "llm/setup/peak_memory.h"
#include "sherd/communicator.h"
#include "sherd/error.h"
#include "sherd/memory.h"

namespace llm::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLeastBytes = 4 << 10;
constexpr std::int64_t kSizeStep = 4;
constexpr std::int64_t kPairSizeStep = 16;
constexpr int kMostRounds = 100;
constexpr double kSecondsASize = 0.3;
constexpr double kLongestExchange_seconds = 3;
constexpr double kTensorsOfMemory = 5;  // of the largest size, that a rank has at a time

/// A group of ranks that exchange tensors of some sizes, which become fewer where ranks are so many
/// that two sizes have pieces of one size. One that is not `reduced` takes no memory for it.
class Exchange {
 public:
  Exchange(sherd::World& world, const sherd::RankGroup& group,
           const std::vector<std::int64_t>& sizes, bool reduced)
      : communicator_(world.make_communicator(group)), ranks_(group.size), device_(world.device()) {
    std::vector<sherd::SegmentSpec> segments;
    for (const std::int64_t bytes : sizes) {
      const std::int64_t numel = pieces_of(bytes);
      if (segments.empty() || segments.back().shard_numel != numel) {
        segments.push_back({.name = fmt::format("{} bytes", bytes),
                            .shard_numel = numel,
                            .dtype = c10::ScalarType::Float,
                            .trainable = reduced});
      }
    }
    const auto most = static_cast<std::size_t>(segments.back().shard_numel);
    own_ = at::zeros({static_cast<std::int64_t>(most) * ranks_}, device_);
    sums_ = at::zeros({reduced ? static_cast<std::int64_t>(most) : 0}, device_);
    communicator_->attach(segments, device_, std::make_shared<sherd::MemoryLedger>());
    segments_ = std::move(segments);
    for (int segment = 0; segment < static_cast<int>(segments_.size()); ++segment) {
      communicator_->begin_update(segment);
      communicator_->publish(segment);
    }
  }

  // Of pieces that are new: where memory is shared nothing else would have to be waited for.
  void all_gather(int segment) {
    communicator_->begin_update(segment);
    communicator_->publish(segment);
    const bool in_place = communicator_->gathers_in_place();
    const void* whole = communicator_->gather(segment, in_place ? nullptr : own_.data_ptr(), {});
    communicator_->wait_gather(segment);
    if (in_place) {
      const auto bytes = static_cast<std::size_t>(shard_numel(segment) * ranks_) * sizeof(float);
      std::memcpy(own_.data_ptr(), whole, bytes);
    }
    communicator_->release(segment);
  }
  void reduce_scatter(int segment) {
    const sherd::Communicator::Reduction target{sums_.data_ptr<float>()};
    static_cast<void>(communicator_->acquire_reduce_buffer(segment, target));
    communicator_->reduce(segment, target);
    communicator_->finish_reductions();
  }
  void all_reduce(int segment) {
    reduce_scatter(segment);
    all_gather(segment);
  }
  [[nodiscard]] int sizes() const { return static_cast<int>(segments_.size()); }
  [[nodiscard]] std::int64_t bytes_of(int segment) const {
    return shard_numel(segment) * ranks_ * static_cast<std::int64_t>(sizeof(float));
  }
  [[nodiscard]] std::string transport() const { return communicator_->transport(); }

 private:
  // Whole pieces of 64 bytes, which is what a communicator takes.
  [[nodiscard]] std::int64_t pieces_of(std::int64_t bytes) const {
    const std::int64_t values = 16;
    return std::max<std::int64_t>(1, bytes / (ranks_ * values * 4)) * values;
  }
  [[nodiscard]] std::int64_t shard_numel(int segment) const {
    return segments_[static_cast<std::size_t>(segment)].shard_numel;
  }

  std::unique_ptr<sherd::Communicator> communicator_;
  int ranks_;
  c10::Device device_;
  std::vector<sherd::SegmentSpec> segments_;
  at::Tensor own_;
  at::Tensor sums_;
};

double slowest(sherd::World& world, double seconds) {
  world.all_reduce({&seconds, 1}, sherd::ReduceOp::Max);
  return seconds;
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// This rank's mean over as many as fit in the time that a size has, the same number on all ranks.
double mean_seconds(sherd::World& world, const std::function<void()>& work) {
  work();
  world.barrier();
  const double once = slowest(world, seconds_of(work));
  const int rounds = std::clamp(static_cast<int>(kSecondsASize / once), 1, kMostRounds);
  world.barrier();
  const double all = seconds_of([&] {
    for (int round = 0; round < rounds; ++round) {
      work();
    }
  });
  return all / rounds;
}

std::vector<std::int64_t> sizes_up_to(std::int64_t most_bytes, std::int64_t step) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = kLeastBytes; bytes <= most_bytes; bytes *= step) {
    sizes.push_back(bytes);
  }
  return sizes;
}

struct Operation {
  const char* name;
  void (Exchange::*run)(int segment);
  double passes;  ///< over the bus
};
constexpr Operation kOperations[] = {{"all-gather", &Exchange::all_gather, 1},
                                     {"reduce-scatter", &Exchange::reduce_scatter, 1},
                                     {"all-reduce", &Exchange::all_reduce, 2}};

void measure_collectives(sherd::World& world, const BandwidthOptions& options, Bandwidth& result) {
  const auto sizes = sizes_up_to(std::max(options.most_bytes, kLeastBytes), kSizeStep);
  Exchange exchange(world, {0, 1, world.size()}, sizes, /*reduced=*/true);
  result.transport = exchange.transport();
  const double ranks = world.size();
  for (int segment = 0; segment < exchange.sizes(); ++segment) {
    const std::int64_t bytes = exchange.bytes_of(segment);
    options.progress(fmt::format("collectives of {} KiB", bytes >> 10));
    for (const Operation& operation : kOperations) {
      const double seconds =
          slowest(world, mean_seconds(world, [&] { (exchange.*operation.run)(segment); }));
      result.collectives.push_back(
          {operation.name, bytes, seconds,
           static_cast<double>(bytes) / seconds * operation.passes * (ranks - 1) / ranks});
    }
  }
}

nlohmann::json json_of(const PairRate& rate) {
  nlohmann::json sizes = nlohmann::json::array();
  for (const ExchangeRate& one : rate.sizes) {
    sizes.push_back({one.bytes, one.seconds, one.bytes_per_second});
  }
  return {rate.first, rate.second, rate.transport, sizes};
}

PairRate pair_in(const nlohmann::json& json) {
  PairRate rate{json.at(0), json.at(1), json.at(2), {}};
  for (const nlohmann::json& one : json.at(3)) {
    rate.sizes.push_back({one.at(0), one.at(1), one.at(2)});
  }
  return rate;
}

// Rates that one rank of each pair knows become known to all.
std::vector<PairRate> shared_by_all(sherd::World& world, const std::vector<PairRate>& own) {
  nlohmann::json known = nlohmann::json::array();
  for (const PairRate& rate : own) {
    known.push_back(json_of(rate));
  }
  std::vector<PairRate> all;
  for (const std::string& said : world.all_gather(known.dump())) {
    for (const nlohmann::json& one : nlohmann::json::parse(said)) {
      all.push_back(pair_in(one));
    }
  }
  std::sort(all.begin(), all.end(), [](const PairRate& one, const PairRate& other) {
    return std::pair(one.first, one.second) < std::pair(other.first, other.second);
  });
  return all;
}

// What this rank and its partner exchange, sizes in their order while all pairs of the round take
// seconds at most. A rank without a partner takes part in what is collective over the world.
std::vector<ExchangeRate> exchange_rates(sherd::World& world, Exchange* exchange,
                                         const std::vector<std::int64_t>& sizes) {
  std::vector<ExchangeRate> rates;
  double expected_seconds = 0;
  for (int size = 0; size < static_cast<int>(sizes.size()); ++size) {
    if (expected_seconds > kLongestExchange_seconds) {
      break;
    }
    const double seconds = mean_seconds(world, [&] {
      if (exchange != nullptr) {
        exchange->all_gather(size);
      }
    });
    expected_seconds = slowest(world, seconds) * static_cast<double>(kPairSizeStep);
    if (exchange != nullptr) {
      const std::int64_t bytes = exchange->bytes_of(size) / 2;
      rates.push_back({bytes, seconds, static_cast<double>(bytes) / seconds});
    }
  }
  return rates;
}

void measure_pairs(sherd::World& world, const std::vector<int>& hosts,
                   const BandwidthOptions& options, Bandwidth& result) {
  const auto sizes = sizes_up_to(std::max(options.most_bytes, kLeastBytes), kPairSizeStep);
  std::vector<std::int64_t> both_ways;
  for (const std::int64_t bytes : sizes) {
    both_ways.push_back(2 * bytes);
  }
  const auto rounds = pair_rounds(hosts);
  std::vector<PairRate> own;
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    options.progress(fmt::format("pairs of ranks, round {} of {}", round + 1, rounds.size()));
    const auto pair =
        std::find_if(rounds[round].begin(), rounds[round].end(), [&](const RankPair& one) {
          return one.first == world.rank() || one.second == world.rank();
        });
    if (pair == rounds[round].end()) {
      static_cast<void>(world.make_communicator({world.rank(), 1, 1}));  // as the others do
      static_cast<void>(exchange_rates(world, nullptr, sizes));
      continue;
    }
    Exchange exchange(world, {pair->first, pair->second - pair->first, 2}, both_ways,
                      /*reduced=*/false);
    const auto rates = exchange_rates(world, &exchange, sizes);
    if (world.rank() == pair->first) {
      own.push_back({pair->first, pair->second, exchange.transport(), rates});
    }
  }
  result.pairs = shared_by_all(world, own);
}

// Alike for ranks that have one network of their host in common.
std::string name_of_this_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code ignored;
  return fmt::format("{} {} {}", name.data(), boot,
                     std::filesystem::read_symlink("/proc/self/ns/net", ignored).string());
}

// By rank the number of its host, in the order in which ranks meet them.
std::vector<int> hosts_of_ranks(sherd::World& world) {
  std::vector<std::string> names;
  std::vector<int> hosts;
  for (const std::string& name : world.all_gather(name_of_this_host())) {
    const auto found = std::find(names.begin(), names.end(), name);
    hosts.push_back(static_cast<int>(found - names.begin()));
    if (found == names.end()) {
      names.push_back(name);
    }
  }
  return hosts;
}

// The kernel would end ranks without a word.
void require_memory(sherd::World& world, const std::vector<int>& hosts,
                    const BandwidthOptions& options) {
  const int own_host = hosts[static_cast<std::size_t>(world.rank())];
  const auto ranks = static_cast<int>(std::count(hosts.begin(), hosts.end(), own_host));
  const auto available = static_cast<double>(llm::setup::available_memory_bytes(ranks));
  const double needed = kTensorsOfMemory * static_cast<double>(options.most_bytes) * ranks;
  double share = available > 0 ? needed / available : 0;
  world.all_reduce({&share, 1}, sherd::ReduceOp::Max);
  if (share > 1) {
    throw sherd::Error(
        sherd::ExitCode::OutOfMemory,
        fmt::format(
            "tensors of {} MiB take {:.3g} times the memory that a host has for its ranks "
            "({:.0f} times their size for each of them): --max-mib {}",
            options.most_bytes >> 20, share, kTensorsOfMemory,
            static_cast<std::int64_t>(static_cast<double>(options.most_bytes >> 20) / share)));
  }
}

}  // namespace

Bandwidth measure_bandwidth(sherd::World world, const BandwidthOptions& options) {
  if (world.size() < 2) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        "one rank alone exchanges nothing: start several, as in sherd bandwidth -n 2");
  }
  const std::vector<int> hosts = hosts_of_ranks(world);
  require_memory(world, hosts, options);
  Bandwidth result;
  result.ranks = world.size();
  result.hosts = *std::max_element(hosts.begin(), hosts.end()) + 1;
  measure_collectives(world, options, result);
  measure_pairs(world, hosts, options, result);
  return result;
}

double judged_rate(const Bandwidth& bandwidth) {
  double rate = 0;
  for (const CollectiveRate& one : bandwidth.collectives) {
    if (one.operation == kOperations[0].name && one.bytes <= kJudgedBytes) {
      rate = one.bus_bytes_per_second;
    }
  }
  return rate;
}

}  // namespace llm::bench
