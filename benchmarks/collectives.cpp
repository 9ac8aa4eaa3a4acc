// What exchanging a model's bytes costs between two ranks of one host: in shared memory, and by
// Gloo's own collectives, which PyTorch's FSDP2 uses there; in turns, in one run.
//
//   OMP_NUM_THREADS=1 build/release/bin/collectives [--rounds N] [--json]
//
// all-gather: into a buffer of the rank's own, so in shared memory with a copy that the engine does
// not make. reduce-scatter: bf16 gradients that lie in place. `in place`: what the engine itself
// waits for, a gather without the copy. Sizes are of the whole tensor. Both sides' buffers lie on
// huge pages.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include "benchmarks/program.h"
#include "launch/loopback_socket.h"
#include "sherd/world.h"

namespace sherd::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
constexpr int kWarmUp = 2;
constexpr size_t kHugePage = size_t{2} << 20;
const std::vector<int64_t> kMebibytes = {8, 64, 256};

/// Memory on huge pages, as Sherd asks for its own.
class HugePages {
 public:
  explicit HugePages(int64_t bytes)
      : bytes_((static_cast<size_t>(bytes) + kHugePage - 1) / kHugePage * kHugePage),
        data_(std::aligned_alloc(kHugePage, bytes_)) {
    if (data_ == nullptr) {
      std::perror("aligned_alloc");
      std::exit(EXIT_FAILURE);
    }
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  ~HugePages() { std::free(data_); }
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] at::Tensor bfloat16(int64_t begin, int64_t numel) const {
    return at::from_blob(static_cast<c10::BFloat16*>(data_) + begin, {numel}, at::kBFloat16);
  }

 private:
  size_t bytes_;
  void* data_;
};

// Not zeros, on which some machines are faster.
void fill(void* data, int64_t numel, int rank) {
  auto* values = static_cast<c10::BFloat16*>(data);
  for (int64_t i = 0; i < numel; ++i) {
    values[i] = static_cast<float>((i * 7 + rank) % 251) / 64.0F;
  }
}

/// One size on one rank: each operation once, by its name.
class Exchange {
 public:
  Exchange(World world, c10d::Backend& gloo, int64_t numel)
      : numel_(numel),
        piece_(numel / kRanks),
        rank_(world.rank()),
        communicator_(world.make_communicator({0, 1, kRanks})),
        gloo_(gloo),
        gathered_(2 * numel),
        shard_(numel),
        gradients_(2 * numel),
        sum_(4 * piece_),
        gloo_sum_(2 * piece_) {
    communicator_->attach({{.name = "block", .shard_numel = piece_, .dtype = c10::kBFloat16}},
                          c10::kCPU, std::make_shared<MemoryLedger>());
    fill(communicator_->travelling_shard(0), piece_, rank_);
    communicator_->begin_update(0);
    communicator_->publish(0);
    fill(shard_.data(), piece_, rank_);
    fill(gradients_.data(), numel, rank_);
    const Communicator::Reduction target{static_cast<float*>(sum_.data())};
    fill(communicator_->acquire_reduce_buffer(0, target), numel, rank_);
    communicator_->release_reduce_buffer(0);
  }

  void gather(bool copies) {
    const void* whole = communicator_->gather(0, nullptr, {});
    communicator_->wait_gather(0);
    if (copies) {
      std::memcpy(gathered_.data(), whole, static_cast<size_t>(2 * numel_));
    }
    communicator_->release(0);
  }
  void gloo_gather() {
    at::Tensor out = gathered_.bfloat16(0, numel_);
    at::Tensor in = shard_.bfloat16(0, piece_);
    gloo_._allgather_base(out, in)->wait();
  }
  // The gradients are those of the last time: a buffer is given out again as it was left.
  void reduce() {
    const Communicator::Reduction target{static_cast<float*>(sum_.data())};
    static_cast<void>(communicator_->acquire_reduce_buffer(0, target));
    communicator_->reduce(0, target);
    communicator_->finish_reductions();
  }
  void gloo_reduce() {
    at::Tensor out = gloo_sum_.bfloat16(0, piece_);
    at::Tensor in = gradients_.bfloat16(0, numel_);
    gloo_._reduce_scatter_base(out, in)->wait();
  }
  void barrier() { communicator_->barrier(); }

  /// Both sides gathered the same, and reduced the same up to Gloo's rounding to bf16.
  [[nodiscard]] bool agree() {
    gather(true);
    const std::vector<char> ours(static_cast<const char*>(gathered_.data()),
                                 static_cast<const char*>(gathered_.data()) + 2 * numel_);
    gloo_gather();
    const bool gathers = std::memcmp(ours.data(), gathered_.data(), ours.size()) == 0;
    reduce();
    gloo_reduce();
    const auto* exact = static_cast<const float*>(sum_.data());
    const auto* rounded = static_cast<const c10::BFloat16*>(gloo_sum_.data());
    return gathers && std::equal(exact, exact + piece_, rounded, [](float a, c10::BFloat16 b) {
             return std::abs(a - static_cast<float>(b)) <= 0.01F * std::abs(a);
           });
  }

 private:
  int64_t numel_;
  int64_t piece_;
  int rank_;
  std::unique_ptr<Communicator> communicator_;
  c10d::Backend& gloo_;
  HugePages gathered_;
  HugePages shard_;
  HugePages gradients_;
  HugePages sum_;
  HugePages gloo_sum_;
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

struct Operation {
  const char* name;
  void (*run)(Exchange&);
};
const std::vector<Operation> kOperations = {
    {"gather_in_place", [](Exchange& e) { e.gather(false); }},
    {"gather", [](Exchange& e) { e.gather(true); }},
    {"gloo_gather", [](Exchange& e) { e.gloo_gather(); }},
    {"reduce", [](Exchange& e) { e.reduce(); }},
    {"gloo_reduce", [](Exchange& e) { e.gloo_reduce(); }},
};

/// Milliseconds of each operation, from when both ranks begin until the later one has ended.
std::vector<std::vector<double>> measure(World& world, Exchange& exchange, int rounds) {
  std::vector<std::vector<double>> times(kOperations.size());
  for (int round = -kWarmUp; round < rounds; ++round) {
    for (size_t i = 0; i < kOperations.size(); ++i) {
      exchange.barrier();
      const auto begin = Clock::now();
      kOperations[i].run(exchange);
      double time = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      world.all_reduce({&time, 1}, ReduceOp::Max);
      if (round >= 0) {
        times[i].push_back(time);
      }
    }
  }
  return times;
}

nlohmann::json result_of(World& world, c10d::Backend& gloo, int64_t mebibytes, int rounds) {
  Exchange exchange(world, gloo, (mebibytes << 20) / 2);
  if (!exchange.agree()) {
    std::fprintf(stderr, "collectives: the two sides do not compute the same\n");
    std::exit(EXIT_FAILURE);
  }
  const auto times = measure(world, exchange, rounds);
  nlohmann::json result = {{"mebibytes", mebibytes}};
  for (size_t i = 0; i < kOperations.size(); ++i) {
    result[kOperations[i].name] = {{"median_ms", quantile(times[i], 0.5)},
                                   {"p10_ms", quantile(times[i], 0.1)},
                                   {"p90_ms", quantile(times[i], 0.9)}};
  }
  const auto ratio = [&](const char* slow, const char* fast) {
    return result[slow]["median_ms"].get<double>() / result[fast]["median_ms"].get<double>();
  };
  result["all_gather_ratio"] = ratio("gloo_gather", "gather");
  result["reduce_scatter_ratio"] = ratio("gloo_reduce", "reduce");
  return result;
}

void print_row(const nlohmann::json& result) {
  const auto cell = [&](const char* name) {
    const nlohmann::json& r = result[name];
    char text[64];
    std::snprintf(text, sizeof text, "%.2f (%.2f–%.2f)", r["median_ms"].get<double>(),
                  r["p10_ms"].get<double>(), r["p90_ms"].get<double>());
    return std::string(text);
  };
  std::printf("| %d MiB | %s | %s | %s | %.1f | %s | %s | %.1f |\n", result["mebibytes"].get<int>(),
              cell("gather_in_place").c_str(), cell("gather").c_str(), cell("gloo_gather").c_str(),
              result["all_gather_ratio"].get<double>(), cell("reduce").c_str(),
              cell("gloo_reduce").c_str(), result["reduce_scatter_ratio"].get<double>());
}

// A group of its own, with nothing of Sherd around it.
c10::intrusive_ptr<c10d::Backend> make_gloo(int rank, std::uint16_t port) {
  c10d::TCPStoreOptions store_options;
  store_options.port = port;
  store_options.isServer = rank == 0;
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store_options);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, kRanks, options);
}

void run_rank(int rank, std::uint16_t gloo_port, const Flags& flags) {
  at::set_num_threads(1);
  World world = World::from_environment({.transport = Transport::SharedMemory});
  const auto gloo = make_gloo(rank, gloo_port);
  nlohmann::json report = {{"processor", processor()},
                           {"ranks", kRanks},
                           {"dtype", "bf16"},
                           {"rounds", flags.rounds},
                           {"results", nlohmann::json::array()}};
  const bool prints = rank == 0 && !flags.json;
  if (prints) {
    std::printf("%s, %d ranks, bf16, %d rounds; milliseconds: median (10 %%–90 %%)\n\n",
                report["processor"].get<std::string>().c_str(), kRanks, flags.rounds);
    std::printf(
        "| whole tensor | gather in place | all-gather | Gloo | ratio | reduce-scatter | Gloo | "
        "ratio |\n|---|---|---|---|---|---|---|---|\n");
  }
  for (const int64_t mebibytes : kMebibytes) {
    report["results"].push_back(result_of(world, *gloo, mebibytes, flags.rounds));
    if (prints) {
      print_row(report["results"].back());
      std::fflush(stdout);
    }
  }
  if (rank == 0 && flags.json) {
    std::printf("%s\n", report.dump().c_str());
  }
  world.barrier();
}

int run(const Flags& flags) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  std::uint16_t gloo_port = 0;
  { gloo_port = launch::listen_on_loopback({}).port; }
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    for (const char* name : {"RANK", "LOCAL_RANK"}) {
      setenv(name, std::to_string(rank).c_str(), 1);
    }
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
      setenv(name, std::to_string(kRanks).c_str(), 1);
    }
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(socket.port).c_str(), 1);
    setenv("SHERD_SUPERVISOR_FD", "0", 1);
    if (rank == 0) {
      setenv("SHERD_MASTER_FD", std::to_string(socket.fd.get()).c_str(), 1);
    }
    try {
      run_rank(rank, gloo_port, flags);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "collectives: rank %d: %s\n", rank, error.what());
      _exit(EXIT_FAILURE);
    }
    std::fflush(nullptr);
    _exit(EXIT_SUCCESS);
  }
  int failures = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failures += status == 0 ? 0 : 1;
  }
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  return sherd::benchmarks::run(sherd::benchmarks::flags_of(argc, argv, 15));
}
