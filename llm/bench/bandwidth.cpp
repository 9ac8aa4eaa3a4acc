#include "llm/bench/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "sherd/communicator.h"
#include "sherd/error.h"
#include "sherd/memory.h"

namespace llm::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLeastBytes = 4 << 10;
constexpr std::int64_t kPairBytes = 16 << 20;
constexpr int kMostRounds = 100;
constexpr double kSecondsASize = 0.3;

/// A group of ranks that exchange tensors of some sizes.
class Exchange {
 public:
  Exchange(sherd::World& world, const sherd::RankGroup& group,
           const std::vector<std::int64_t>& sizes)
      : communicator_(world.make_communicator(group)), ranks_(group.size), device_(world.device()) {
    std::vector<sherd::SegmentSpec> segments;
    for (const std::int64_t bytes : sizes) {
      segments.push_back({.name = fmt::format("{} bytes", bytes),
                          .shard_numel = pieces_of(bytes),
                          .dtype = c10::ScalarType::Float});
    }
    const auto most = static_cast<std::size_t>(segments.back().shard_numel);
    own_ = at::zeros({static_cast<std::int64_t>(most) * ranks_}, device_);
    sums_ = at::zeros({static_cast<std::int64_t>(most)}, device_);
    communicator_->attach(segments, device_, std::make_shared<sherd::MemoryLedger>());
    segments_ = std::move(segments);
    for (int segment = 0; segment < static_cast<int>(segments_.size()); ++segment) {
      communicator_->begin_update(segment);
      communicator_->publish(segment);
    }
  }

  void all_gather(int segment) {
    const bool in_place = communicator_->gathers_in_place();
    const void* whole = communicator_->gather(segment, in_place ? nullptr : own_.data_ptr());
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
    communicator_->begin_update(segment);
    communicator_->publish(segment);
    all_gather(segment);
  }
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

std::vector<std::int64_t> sizes_up_to(std::int64_t most_bytes) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = kLeastBytes; bytes <= most_bytes; bytes *= 4) {
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
  const auto sizes = sizes_up_to(std::max(options.most_bytes, kLeastBytes));
  Exchange exchange(world, {0, 1, world.size()}, sizes);
  result.transport = exchange.transport();
  const double ranks = world.size();
  for (int segment = 0; segment < static_cast<int>(sizes.size()); ++segment) {
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

// Who is whose partner in a round in which each has one: the circle of a round-robin tournament.
std::optional<std::pair<int, int>> partners(int me, int players, int round) {
  const int even = players + players % 2;
  for (int i = 0; i < even / 2; ++i) {
    const auto seat = [&](int place) {
      return place == 0 ? 0 : (place - 1 + round) % (even - 1) + 1;
    };
    const std::pair<int, int> pair = std::minmax(seat(i), seat(even - 1 - i));
    if ((pair.first == me || pair.second == me) && pair.second < players) {
      return pair;
    }
  }
  return std::nullopt;
}

// Rates that one rank of each pair knows become known to all.
std::vector<PairRate> shared_by_all(sherd::World& world, const std::vector<PairRate>& own) {
  std::string text;
  for (const PairRate& rate : own) {
    text += fmt::format("{} {} {} {}\n", rate.first, rate.second, rate.latency_seconds,
                        rate.bytes_per_second);
  }
  std::vector<PairRate> all;
  for (const std::string& said : world.all_gather(text)) {
    std::istringstream words(said);
    for (PairRate rate;
         words >> rate.first >> rate.second >> rate.latency_seconds >> rate.bytes_per_second;) {
      all.push_back(rate);
    }
  }
  std::sort(all.begin(), all.end(), [](const PairRate& one, const PairRate& other) {
    return std::pair(one.first, one.second) < std::pair(other.first, other.second);
  });
  return all;
}

// Nobody's link is shared: each speaker exchanges with one other at a time.
void measure_pairs(sherd::World& world, const std::vector<int>& speakers,
                   const BandwidthOptions& options, Bandwidth& result) {
  const auto at = std::find(speakers.begin(), speakers.end(), world.rank());
  const int players = static_cast<int>(speakers.size());
  const int me = static_cast<int>(at - speakers.begin());
  std::vector<PairRate> own;
  for (int round = 0; round < players + players % 2 - 1; ++round) {
    options.progress(fmt::format("pairs of ranks, round {}", round + 1));
    const auto pair = partners(me, players, round);
    sherd::RankGroup group{world.rank(), 1, 1};
    if (pair) {
      const int first = speakers[static_cast<std::size_t>(pair->first)];
      const int second = speakers[static_cast<std::size_t>(pair->second)];
      group = {first, second - first, 2};
    }
    Exchange exchange(world, group, {kLeastBytes, kPairBytes});
    const double latency = mean_seconds(world, [&] { exchange.all_gather(0); });
    const double seconds = mean_seconds(world, [&] { exchange.all_gather(1); });
    if (pair && me == pair->first) {
      own.push_back({group.first, group.rank_at(1), latency,
                     static_cast<double>(exchange.bytes_of(1)) / 2 / seconds});
    }
  }
  result.pairs = shared_by_all(world, own);
}

// Of all hosts the first rank, or where there is one host all of its ranks.
std::vector<int> speakers_of(sherd::World& world, int& hosts) {
  const auto local_ranks = world.all_gather(std::to_string(world.local_rank()));
  hosts = static_cast<int>(std::count(local_ranks.begin(), local_ranks.end(), "0"));
  std::vector<int> speakers;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (hosts == 1 || local_ranks[static_cast<std::size_t>(rank)] == "0") {
      speakers.push_back(rank);
    }
  }
  return speakers;
}

}  // namespace

Bandwidth measure_bandwidth(sherd::World world, const BandwidthOptions& options) {
  if (world.size() < 2) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        "one rank alone exchanges nothing: start several, as in sherd bandwidth -n 2");
  }
  Bandwidth result;
  result.ranks = world.size();
  measure_collectives(world, options, result);
  const std::vector<int> speakers = speakers_of(world, result.hosts);
  measure_pairs(world, speakers, options, result);
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
