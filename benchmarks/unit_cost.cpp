// What a unit of next to nothing costs between ranks: 500 of them in each strategy, by ranks that
// are threads of this process. Microseconds a unit and step: as the clock has it, processor time of
// one rank, and how much of the first a rank spent in waits for others.
//
//   OMP_NUM_THREADS=1 build/release/bin/unit_cost [--rounds N] [--json]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <nlohmann/json.hpp>
#include <time.h>
#include <torch/nn/modules/linear.h>

#include "benchmarks/program.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"

namespace sherd::benchmarks {
namespace {

constexpr int kUnits = 500;
constexpr int64_t kWidth = 4;
constexpr int kWarmUp = 3;

struct BlockImpl : torch::nn::Module {
  BlockImpl() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) { return at::tanh(linear(x)); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < kUnits; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Unit<Block>()));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (auto& block : blocks) {
      y = block(y);
    }
    return y;
  }
  std::vector<Unit<Block>> blocks;
};
TORCH_MODULE(Net);

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Adds up how long its rank waits in collectives, and how many it has.
class Waits final : public CollectiveObserver {
 public:
  void started(const Collective& /*collective*/) override { ++collectives; }
  void waiting(const Collective& /*collective*/) override { begin_ = seconds_of(CLOCK_MONOTONIC); }
  void ended(const Collective& /*collective*/) override {
    if (begin_ > 0) {
      seconds += seconds_of(CLOCK_MONOTONIC) - begin_;
      begin_ = 0;
    }
  }
  double seconds = 0;
  double collectives = 0;

 private:
  double begin_ = 0;
};

/// Of one step, in µs a unit.
struct Cost {
  double wall = 0;
  double processor = 0;
  double waited = 0;
  double collectives = 0;
};

void train(Sharded<Net>& model, AdamW& optimizer, const at::Tensor& x) {
  model(x).square().sum().backward();
  optimizer.step();
  optimizer.zero_grad();
}

std::vector<Cost> measure_rank(World world, Strategy strategy, int rounds) {
  at::set_num_threads(1);
  const auto waits = std::make_shared<Waits>();
  world.set_observer(waits);
  const Mesh mesh = strategy == Strategy::HybridShard ? Mesh::hybrid(world, world.size() / 2)
                                                      : Mesh::shard(world);
  Net net;
  sync_module_states(*net, world);
  auto model = fully_shard(net, mesh, {.strategy = strategy});
  AdamW optimizer(model, {.lr = 1e-4});
  const at::Tensor x = at::ones({1, kWidth});
  std::vector<Cost> costs;
  for (int round = -kWarmUp; round < rounds; ++round) {
    const double wall = seconds_of(CLOCK_MONOTONIC);
    const double processor = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    const double waited = waits->seconds;
    const double collectives = waits->collectives;
    train(model, optimizer, x);
    if (round >= 0) {
      constexpr double kScale = 1e6 / kUnits;
      costs.push_back({kScale * (seconds_of(CLOCK_MONOTONIC) - wall),
                       kScale * (seconds_of(CLOCK_THREAD_CPUTIME_ID) - processor),
                       kScale * (waits->seconds - waited),
                       (waits->collectives - collectives) / kUnits});
    }
  }
  return costs;
}

double median(const std::vector<Cost>& costs, double Cost::*field) {
  std::vector<double> values;
  for (const Cost& cost : costs) {
    values.push_back(cost.*field);
  }
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json result_of(int ranks, Strategy strategy, int rounds) {
  std::vector<World> worlds = World::in_process(ranks);
  std::vector<Cost> first;
  std::vector<std::thread> threads;
  for (World& world : worlds) {
    threads.emplace_back([&, world] {
      std::vector<Cost> costs = measure_rank(world, strategy, rounds);
      if (world.rank() == 0) {
        first = std::move(costs);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return {{"ranks", ranks},
          {"strategy", name_of(strategy)},
          {"wall_us", median(first, &Cost::wall)},
          {"processor_us", median(first, &Cost::processor)},
          {"waited_us", median(first, &Cost::waited)},
          {"collectives", median(first, &Cost::collectives)}};
}

int run(const Flags& flags) {
  nlohmann::json report = {{"processor", processor()}, {"results", nlohmann::json::array()}};
  if (!flags.json) {
    std::printf("%s, %u processors, %d units, %d rounds; µs a unit and step, medians\n\n",
                processor().c_str(), std::thread::hardware_concurrency(), kUnits, flags.rounds);
    std::printf("| ranks | strategy | clock | processor | waited | collectives |\n");
    std::printf("|---|---|---|---|---|---|\n");
  }
  const std::vector<std::pair<int, Strategy>> cases = {
      {1, Strategy::FullShard},   {2, Strategy::FullShard}, {2, Strategy::NoShard},
      {2, Strategy::HybridShard}, {4, Strategy::FullShard}, {4, Strategy::NoShard},
      {4, Strategy::HybridShard}};
  for (const auto& [ranks, strategy] : cases) {
    const nlohmann::json result = result_of(ranks, strategy, flags.rounds);
    report["results"].push_back(result);
    if (!flags.json) {
      std::printf("| %d | %s | %.0f | %.0f | %.0f | %.1f |\n", ranks, name_of(strategy),
                  result["wall_us"].get<double>(), result["processor_us"].get<double>(),
                  result["waited_us"].get<double>(), result["collectives"].get<double>());
      std::fflush(stdout);
    }
  }
  if (flags.json) {
    std::printf("%s\n", report.dump().c_str());
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  return sherd::benchmarks::run(sherd::benchmarks::flags_of(argc, argv, 10));
}
