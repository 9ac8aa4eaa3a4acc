#include "llm/bench/calibrate.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "llm/bench/bench_data.h"
#include "llm/families/family.h"
#include "llm/plan/operator_watch.h"
#include "llm/setup/load_model.h"
#include "llm/train/train_step.h"
#include "sherd/optim.h"

namespace llm::bench {

namespace {

using Clock = std::chrono::steady_clock;
namespace step_kind = plan::step_kind;

constexpr int kSteps = 3;  // the first is not counted

io::HfConfig config_of(const Reference& reference) {
  const bool rotary = reference.family == "llama";
  constexpr std::int64_t kHeadSize = 64, kSharedHeads = 4;
  const std::int64_t heads = reference.hidden / kHeadSize;
  return {.family = families::find_family(reference.family),
          .shape = {.hidden_size = reference.hidden,
                    .feed_forward_size = rotary ? reference.hidden * 8 / 3 / kHeadSize * kHeadSize
                                                : reference.hidden * 4,
                    .layers = reference.layers,
                    .heads = heads,
                    .key_heads = rotary && heads % kSharedHeads == 0 ? heads / kSharedHeads : heads,
                    .head_size = kHeadSize,
                    .vocab_size = reference.vocabulary,
                    .context_length = 512,
                    .norm_epsilon = 1e-5,
                    .tied_embedding = true,
                    .rope = rotary ? std::optional(model::RopeConfig{}) : std::nullopt},
          .dtype = std::nullopt};
}

// All calls of rank 0, by kind and amount.
class Samples {
 public:
  void add(const std::string& kind, double amount, double seconds) {
    samples_[kind][amount].push_back(seconds);
  }

  [[nodiscard]] std::map<std::string, std::vector<plan::RatePoint>> medians() {
    std::map<std::string, std::vector<plan::RatePoint>> kinds;
    for (auto& [kind, by_amount] : samples_) {
      for (auto& [amount, seconds] : by_amount) {
        std::sort(seconds.begin(), seconds.end());
        kinds[kind].push_back({amount, seconds[(seconds.size() - 1) / 2]});
      }
    }
    return kinds;
  }

 private:
  std::map<std::string, std::map<double, std::vector<double>>> samples_;
};

// The parts of one step that no operator is.
struct Besides {
  double operators = 0;
  double operator_seconds = 0;
  double optimizer_seconds = 0;
  double clip_seconds = 0;
  double exchange_seconds = 0;
};

class Calibration {
 public:
  Calibration(const Reference& reference, c10::ScalarType dtype, sherd::World& world)
      : options_{.precision = {.param_dtype = dtype}},
        world_(world),
        config_(config_of(reference)),
        model_(setup::random_sharded(config_, sherd::Mesh::shard(world), options_, 0)),
        optimizer_(model_, {.lr = 0}),
        tokens_{"", reference.vocabulary, reference.sample_tokens, reference.sample_tokens, 0},
        samples_a_step_(reference.samples) {
    const auto shapes = sherd::on_meta([&] { return io::build_model(config_); });
    for (const at::Tensor& parameter : shapes->parameters()) {
      elements_ += static_cast<double>(parameter.numel());
    }
  }

  void run(Samples& samples) {
    for (int number = 1; number <= kSteps; ++number) {
      step(number, samples);
    }
  }

 private:
  void step(int number, Samples& samples);
  void add(const Besides& besides, double step_seconds, Samples& samples) const;

  sherd::ShardOptions options_;
  sherd::World& world_;
  io::HfConfig config_;
  sherd::Sharded<model::CausalLm> model_;
  sherd::AdamW optimizer_;
  BenchTokens tokens_;
  std::int64_t samples_a_step_;
  double elements_ = 0;
};

void Calibration::step(int number, Samples& samples) {
  const std::int64_t first =
      (std::int64_t{number} * world_.size() + world_.rank()) * samples_a_step_;
  const std::vector<inputs::Batch> batches = {bench_batch(tokens_, first, samples_a_step_)};
  const bool counts = number > 1 && world_.rank() == 0;
  Besides besides;
  const auto on_end = [&](const plan::OperatorCall& call) {
    if (call.amount > 0) {
      ++besides.operators;
      besides.operator_seconds += call.seconds;
      if (counts) {
        samples.add(call.kind, call.amount, call.seconds);
      }
      return;
    }
    double& seconds = call.kind == step_kind::kOptimizer ? besides.optimizer_seconds
                      : call.kind == step_kind::kClip    ? besides.clip_seconds
                                                         : besides.exchange_seconds;
    seconds += call.seconds;
  };
  const auto start = Clock::now();
  {
    const plan::OperatorWatch watch(on_end);
    static_cast<void>(
        train::train_step(model_, optimizer_, nullptr, batches, {number, 1.0, false}));
  }
  if (counts) {
    add(besides, std::chrono::duration<double>(Clock::now() - start).count(), samples);
  }
}

void Calibration::add(const Besides& besides, double step_seconds, Samples& samples) const {
  const std::string bits = plan::bits_of(*options_.precision.param_dtype);
  const double shard = elements_ / world_.size();
  const double rest = step_seconds - besides.operator_seconds - besides.optimizer_seconds -
                      besides.clip_seconds - besides.exchange_seconds;
  samples.add(step_kind::kOptimizer + bits, shard, besides.optimizer_seconds);
  samples.add(step_kind::kClip + bits, shard, besides.clip_seconds);
  samples.add(step_kind::kExchange + bits, elements_, besides.exchange_seconds);
  samples.add(step_kind::kBetween + bits, besides.operators, std::max(0.0, rest));
}

}  // namespace

const std::vector<Reference>& references() {
  static const std::vector<Reference> all = {
      {"llama", 256, 4, 8'192, 1, 128},   {"llama", 576, 3, 49'152, 2, 256},
      {"llama", 1024, 2, 32'000, 2, 512}, {"bloom", 256, 4, 8'192, 1, 128},
      {"bloom", 512, 3, 32'768, 2, 256},  {"bloom", 1024, 2, 32'000, 2, 512}};
  return all;
}

plan::Rates calibrate(sherd::World world, const std::vector<Reference>& models,
                      const std::function<void(const std::string&)>& say) {
  Samples samples;
  for (const c10::ScalarType dtype : {c10::kFloat, c10::kBFloat16}) {
    for (const Reference& reference : models) {
      say(fmt::format("{} of width {},{}", reference.family, reference.hidden,
                      plan::bits_of(dtype)));
      Calibration(reference, dtype, world).run(samples);
    }
  }
  plan::Rates rates;
  rates.kinds = samples.medians();
  return rates;
}

}  // namespace llm::bench
