// What the engine itself costs: a world of one against plain LibTorch training of the same model,
// step by step in turns, and the time that a unit of next to nothing takes.
//
//   OMP_NUM_THREADS=1 build/release/bin/engine_cost [--rounds N] [--json]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include "benchmarks/program.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/slot_linear.h"

namespace sherd::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

/// A model of one size. Its operators are LibTorch's, whose weight gradients the engine copies, or
/// write their gradient slots, as Sherd's do.
struct Shape {
  std::string name;
  int64_t units;
  int64_t width;
  int64_t layers_a_unit;
  int64_t rows;
  bool writes_slots;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Shape& shape) : writes_slots(shape.writes_slots) {
    for (int64_t i = 0; i < shape.layers_a_unit; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(shape.width, shape.width)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = x;
    for (const auto& layer : layers) {
      hidden = at::tanh(writes_slots ? test::slot_linear(hidden, layer->weight) + layer->bias
                                     : at::linear(hidden, layer->weight, layer->bias));
    }
    return hidden;
  }
  bool writes_slots;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Shape& shape) {
    for (int64_t i = 0; i < shape.units; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Unit<Block>(shape)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = x;
    for (auto& block : blocks) {
      hidden = block(hidden);
    }
    return hidden;
  }
  std::vector<Unit<Block>> blocks;
};
TORCH_MODULE(Net);

/// Training of one model, a step at a time.
class Training {
 public:
  Training() = default;
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;
  virtual ~Training() = default;
  virtual void forward_and_backward(const at::Tensor& x) = 0;
  virtual void update() = 0;
};

class Plain final : public Training {
 public:
  explicit Plain(const Shape& shape)
      : net_(shape), optimizer_(net_->parameters(), torch::optim::AdamWOptions(1e-4)) {}
  void forward_and_backward(const at::Tensor& x) override { net_(x).square().sum().backward(); }
  void update() override {
    optimizer_.step();
    optimizer_.zero_grad();
  }

 private:
  Net net_;
  torch::optim::AdamW optimizer_;
};

class Sherd final : public Training {
 public:
  explicit Sherd(const Shape& shape)
      : model_(fully_shard(Net(shape), Mesh::shard(World::alone()))), optimizer_(model_) {}
  void forward_and_backward(const at::Tensor& x) override { model_(x).square().sum().backward(); }
  void update() override {
    optimizer_.step();
    optimizer_.zero_grad();
  }

 private:
  Sharded<Net> model_;
  AdamW optimizer_;
};

/// Times of one side, in microseconds.
struct Times {
  std::vector<double> forward_and_backward;
  std::vector<double> step;
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

void time_step(Training& training, const at::Tensor& x, Times& times) {
  const auto begin = Clock::now();
  training.forward_and_backward(x);
  const auto middle = Clock::now();
  training.update();
  times.forward_and_backward.push_back(microseconds(middle - begin));
  times.step.push_back(microseconds(Clock::now() - begin));
}

/// Plain, sharded, and plain once more: what differs between the two plain ones is noise. In turns,
/// forwards and backwards, so that none always comes first.
std::vector<Times> measure(const Shape& shape, int rounds) {
  std::vector<std::unique_ptr<Training>> sides;
  torch::manual_seed(1);
  sides.push_back(std::make_unique<Plain>(shape));
  sides.push_back(std::make_unique<Sherd>(shape));
  sides.push_back(std::make_unique<Plain>(shape));
  const at::Tensor x = at::randn({shape.rows, shape.width});
  constexpr int kWarmUp = 5;
  std::vector<Times> times(sides.size());
  for (int round = -kWarmUp; round < rounds; ++round) {
    for (size_t turn = 0; turn < sides.size(); ++turn) {
      const size_t side = round % 2 == 0 ? turn : sides.size() - 1 - turn;
      Times discarded;
      time_step(*sides[side], x, round < 0 ? discarded : times[side]);
    }
  }
  return times;
}

nlohmann::json summary(const std::vector<double>& values) {
  return {{"median_us", quantile(values, 0.5)},
          {"p10_us", quantile(values, 0.1)},
          {"p90_us", quantile(values, 0.9)}};
}

/// The median of the ratio, round by round: drift of the machine hits both of a round.
double ratio(const std::vector<double>& value, const std::vector<double>& base) {
  std::vector<double> ratios;
  for (size_t i = 0; i < value.size(); ++i) {
    ratios.push_back(value[i] / base[i]);
  }
  return quantile(ratios, 0.5);
}

double difference(const std::vector<double>& value, const std::vector<double>& base) {
  std::vector<double> differences;
  for (size_t i = 0; i < value.size(); ++i) {
    differences.push_back(value[i] - base[i]);
  }
  return quantile(differences, 0.5);
}

nlohmann::json result_of(const Shape& shape, int rounds) {
  const std::vector<Times> times = measure(shape, rounds);
  nlohmann::json result = {{"shape", shape.name},  {"units", shape.units},
                           {"width", shape.width}, {"parameters_a_unit", 2 * shape.layers_a_unit},
                           {"rows", shape.rows},   {"writes_slots", shape.writes_slots},
                           {"rounds", rounds}};
  for (const auto& [part, values] :
       {std::pair{"forward_and_backward", &Times::forward_and_backward},
        std::pair{"step", &Times::step}}) {
    const auto& plain = times[0].*values;
    const auto& sherd = times[1].*values;
    const auto& again = times[2].*values;
    result[part] = {
        {"plain", summary(plain)},
        {"sherd", summary(sherd)},
        {"sherd_to_plain", ratio(sherd, plain)},
        {"plain_to_plain", ratio(again, plain)},
        {"us_more_a_unit", difference(sherd, plain) / static_cast<double>(shape.units)}};
  }
  return result;
}

void print_row(const nlohmann::json& result, const char* part) {
  const nlohmann::json& r = result[part];
  std::printf("| %-34s | %-20s | %9.0f (%.0f–%.0f) | %9.0f (%.0f–%.0f) | %.3f | %.3f | %6.2f |\n",
              result["shape"].get<std::string>().c_str(), part,
              r["plain"]["median_us"].get<double>(), r["plain"]["p10_us"].get<double>(),
              r["plain"]["p90_us"].get<double>(), r["sherd"]["median_us"].get<double>(),
              r["sherd"]["p10_us"].get<double>(), r["sherd"]["p90_us"].get<double>(),
              r["sherd_to_plain"].get<double>(), r["plain_to_plain"].get<double>(),
              r["us_more_a_unit"].get<double>());
}

const std::vector<Shape> kShapes = {
    {"8 units of 4 × 512², 256 rows", 8, 512, 4, 256, false},
    {"the same, writing slots", 8, 512, 4, 256, true},
    {"8 units of 4 × 256², 64 rows", 8, 256, 4, 64, false},
    {"the same, writing slots", 8, 256, 4, 64, true},
    {"200 units of 1 × 4², 1 row", 200, 4, 1, 1, false},
    {"200 units of 8 × 4², 1 row", 200, 4, 8, 1, false},
};

int run(const Flags& flags) {
  at::set_num_threads(1);
  nlohmann::json report = {{"processor", processor()}, {"results", nlohmann::json::array()}};
  if (!flags.json) {
    std::printf("%s, one thread, %d rounds; microseconds: median (10 %%–90 %%)\n\n",
                processor().c_str(), flags.rounds);
    std::printf(
        "| model | part | plain | Sherd | Sherd ÷ plain | plain ÷ plain | µs more a unit |\n");
    std::printf("|---|---|---|---|---|---|---|\n");
  }
  for (const Shape& shape : kShapes) {
    report["results"].push_back(result_of(shape, flags.rounds));
    if (!flags.json) {
      print_row(report["results"].back(), "forward_and_backward");
      print_row(report["results"].back(), "step");
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
  return sherd::benchmarks::run(sherd::benchmarks::flags_of(argc, argv, 100));
}
