// How long first values take: a model's weights from a normal distribution, by sherd::initialize()
// on one thread and on two.
//
//   build/release/bin/random_weights [--rounds N] [--json]
//
// The weights are 16 matrices of 16 Mi elements in bf16 without fp32 masters. Seconds of a model
// of 8.03 billion parameters are this rate times its size.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include "benchmarks/program.h"
#include "sherd/fully_shard.h"
#include "sherd/state_dict.h"

namespace sherd::benchmarks {
namespace {

constexpr int64_t kMatrices = 16;
constexpr int64_t kElements = int64_t{1} << 24;  // of each
constexpr double kLlama8B = 8.03e9;

struct MatricesImpl : torch::nn::Module {
  MatricesImpl() {
    for (int64_t i = 0; i < kMatrices; ++i) {
      register_parameter("weight" + std::to_string(i),
                         at::empty({4096, kElements / 4096}, at::TensorOptions(at::kMeta)));
    }
  }
};
TORCH_MODULE(Matrices);

double nanoseconds_an_element(ShardedModule& model, int threads) {
  at::set_num_threads(threads);
  const auto begin = std::chrono::steady_clock::now();
  initialize(model, 1, [](ParameterInit& parameter) { parameter.fill_normal(0, 0.02); });
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / static_cast<double>(kMatrices * kElements);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int run(const Flags& flags) {
  auto model =
      fully_shard(Matrices(), Mesh::shard(World::alone()),
                  {.precision = {.param_dtype = at::kBFloat16, .master = Master::BFloat16}});
  std::vector<double> one, two;
  for (int round = 0; round < flags.rounds; ++round) {
    one.push_back(nanoseconds_an_element(model, 1));
    two.push_back(nanoseconds_an_element(model, 2));
  }
  const auto seconds = [](double nanoseconds) { return 1e-9 * nanoseconds * kLlama8B; };
  if (flags.json) {
    std::puts(nlohmann::ordered_json{
        {"processor", processor()},
        {"nanoseconds_an_element", {{"1", median(one)}, {"2", median(two)}}},
        {"seconds_of_8_03_billion", {{"1", seconds(median(one))}, {"2", seconds(median(two))}}}}
                  .dump()
                  .c_str());
    return 0;
  }
  std::printf("%s\n", processor().c_str());
  for (const auto& [threads, taken] :
       {std::pair("one thread ", median(one)), std::pair("two threads", median(two))}) {
    std::printf("%s  %6.2f ns per element, %6.1f s for 8.03 billion\n", threads, taken,
                seconds(taken));
  }
  return 0;
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  return sherd::benchmarks::run(sherd::benchmarks::flags_of(argc, argv, 5));
}
