// Saving and loading a state of 1 GiB, beside the disk's own sequential rate, in turns and in one
// run.
//
//   build/release/bin/checkpoints [--rounds N] [--json]
//   build/release/bin/sherd launch -n 2 -- build/release/bin/checkpoints
//
// Writes to ./checkpoints-benchmark, which it removes. Raw: each rank writes or reads one file of
// the bytes that its shard takes, 1 MiB at a time. Reads are cold: the page cache has been told to
// forget the files. "full state": for_each_full_parameter() for rank 0. Each time is that of the
// slowest rank.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/randn.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include "benchmarks/program.h"
#include "sherd/checkpoint.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"

namespace sherd::benchmarks {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kWidth = 2048;
constexpr int kLayers = 21;  // 88 million parameters: 336 MiB, and two moments
constexpr int64_t kStateBytes = 3 * int64_t{kLayers} * kWidth * kWidth * 4;
constexpr size_t kAtATime = size_t{1} << 20;
const fs::path kFolder = "checkpoints-benchmark";

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : linear(register_module(
            "linear", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < kLayers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Unit<Block>()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (Unit<Block>& block : blocks) {
      x = block(x);
    }
    return x;
  }
  std::vector<Unit<Block>> blocks;
};
TORCH_MODULE(Net);

void require(bool holds, const char* what) {
  if (!holds) {
    throw std::runtime_error(std::string(what) + " failed");
  }
}

void forget_pages(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY);
  require(fd >= 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
  ::close(fd);
}

void forget_checkpoint(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    forget_pages(entry.path());
  }
}

/// One file a rank, of its share of the state.
class Raw {
 public:
  explicit Raw(const World& world)
      : path_(kFolder / ("raw-" + std::to_string(world.rank()))),
        bytes_(kStateBytes / world.size()),
        buffer_(at::randn({static_cast<int64_t>(kAtATime) / 4})) {}
  void write() {
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    require(fd >= 0, "open");
    require(::posix_fallocate(fd, 0, bytes_) == 0, "posix_fallocate");
    for (int64_t done = 0; done < bytes_; done += static_cast<int64_t>(kAtATime)) {
      require(::pwrite(fd, buffer_.const_data_ptr(), kAtATime, done) == kAtATime, "pwrite");
    }
    require(::fsync(fd) == 0, "fsync");
    ::close(fd);
  }
  void read() {
    const int fd = ::open(path_.c_str(), O_RDONLY);
    require(fd >= 0, "open");
    for (int64_t done = 0; done < bytes_; done += static_cast<int64_t>(kAtATime)) {
      require(::pread(fd, buffer_.mutable_data_ptr(), kAtATime, done) == kAtATime, "pread");
    }
    ::close(fd);
  }
  void forget() const { forget_pages(path_); }

 private:
  fs::path path_;
  int64_t bytes_;
  at::Tensor buffer_;
};

/// Seconds of the slowest rank.
double seconds(World& world, const std::function<void()>& work) {
  world.barrier();
  const auto begin = Clock::now();
  work();
  double time = std::chrono::duration<double>(Clock::now() - begin).count();
  world.all_reduce({&time, 1}, ReduceOp::Max);
  return time;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void report(const World& world, const Flags& flags,
            const std::vector<std::pair<std::string, std::vector<double>>>& times) {
  nlohmann::ordered_json all = {
      {"processor", processor()}, {"ranks", world.size()}, {"rounds", flags.rounds}};
  if (!flags.json) {
    std::printf("%s, %d ranks, %d rounds, %.2f GiB: medians\n\n", processor().c_str(), world.size(),
                flags.rounds, static_cast<double>(kStateBytes) / (1 << 30));
    std::printf("| operation | seconds | GB/s |\n|---|---|---|\n");
  }
  for (const auto& [name, values] : times) {
    const double time = median(values);
    const double bytes = static_cast<double>(kStateBytes) / (name == "full state" ? 3 : 1);
    all[name] = {{"seconds", time}, {"gb_per_second", bytes / time / 1e9}};
    if (!flags.json) {
      std::printf("| %s | %.2f | %.2f |\n", name.c_str(), time, bytes / time / 1e9);
    }
  }
  if (flags.json) {
    std::printf("%s\n", all.dump().c_str());
  }
}

void run(const Flags& flags) {
  World world = World::from_environment({});
  auto model = fully_shard(Net(), Mesh::shard(world));
  AdamW optimizer(model, {.lr = 1e-3});
  fs::create_directories(kFolder);
  Raw raw(world);
  const fs::path checkpoint = kFolder / "checkpoint";
  const auto forget = [&] {
    raw.forget();
    forget_checkpoint(checkpoint);
  };
  std::vector<std::pair<std::string, std::vector<double>>> times = {
      {"raw write", {}},  {"save_checkpoint", {}},      {"raw read", {}},  {"load_checkpoint", {}},
      {"raw reread", {}}, {"load from page cache", {}}, {"full state", {}}};
  for (int round = 0; round < flags.rounds; ++round) {
    const auto timed = [&](size_t operation, const std::function<void()>& work) {
      times[operation].second.push_back(seconds(world, work));
    };
    timed(0, [&] { raw.write(); });
    timed(1, [&] { save_checkpoint(model, optimizer, checkpoint, ""); });
    forget();
    timed(2, [&] { raw.read(); });
    timed(3, [&] { load_checkpoint(model, optimizer, checkpoint); });
    timed(4, [&] { raw.read(); });
    timed(5, [&] { load_checkpoint(model, optimizer, checkpoint); });
    timed(6, [&] { for_each_full_parameter(model, [](const FullParameter&) {}); });
  }
  world.barrier();
  if (world.rank() == 0) {
    report(world, flags, times);
    fs::remove_all(kFolder);
  }
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  try {
    sherd::benchmarks::run(sherd::benchmarks::flags_of(argc, argv, 3));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoints: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
