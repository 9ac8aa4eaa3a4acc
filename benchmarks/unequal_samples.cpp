// Whether samples of unequal length cost what their tokens cost: batches of as many samples and
// tokens, all of one length or of eight, in turns, forwards and backwards and in evaluation.
//
//   OMP_NUM_THREADS=2 build/release/bin/unequal_samples CONFIG.json [float32|bfloat16] [ROUNDS]
//
// Random weights and ids, every token supervised. Prints one line of JSON: medians in seconds.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "llm/io/hf_config.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"

namespace {

using Model = sherd::Sharded<llm::model::CausalLm>;

constexpr int kDefaultRounds = 7;
// Both 2048 tokens.
const std::vector<std::int64_t> kEqual(8, 256);
const std::vector<std::int64_t> kUnequal = {64, 448, 128, 384, 192, 320, 32, 480};

llm::model::TokenBatch batch_of(const std::vector<std::int64_t>& lengths, std::int64_t vocabulary) {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<std::int64_t> ids(0, vocabulary - 1);
  llm::inputs::Batch batch;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length; ++i) {
      batch.input_ids.push_back(ids(random));
      batch.labels.push_back(i == 0 ? llm::inputs::kUnsupervised : batch.input_ids.back());
    }
    batch.bounds.push_back(batch.bounds.back() + length);
    batch.supervised_tokens += length - 1;
  }
  return llm::setup::to_tensors(batch);
}

template <class Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void train(Model& model, const llm::model::TokenBatch& batch) {
  llm::setup::loss_sum(model, batch).backward();
  model.zero_grad();
}

void evaluate(Model& model, const llm::model::TokenBatch& batch) {
  const at::NoGradGuard no_grad;
  (void)llm::setup::loss_sum(model, batch).item<double>();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Pass>
nlohmann::ordered_json compare(int rounds, const Pass& pass) {
  std::vector<double> equal, unequal;
  for (int round = -1; round < rounds; ++round) {
    const double of_equal = seconds_of([&] { pass(kEqual); });
    const double of_unequal = seconds_of([&] { pass(kUnequal); });
    if (round >= 0) {  // the first warms
      equal.push_back(of_equal);
      unequal.push_back(of_unequal);
    }
  }
  return {{"equal_seconds", median(equal)},
          {"unequal_seconds", median(unequal)},
          {"ratio", median(unequal) / median(equal)}};
}

void run(const std::string& path, const std::string& dtype, int rounds) {
  const llm::io::HfConfig config = llm::io::read_hf_config(path);
  std::vector<sherd::World> worlds = sherd::World::in_process(1);
  sherd::ShardOptions options;
  options.precision.param_dtype = llm::io::dtype_of_name(dtype).value();
  Model model =
      llm::setup::random_sharded(config, sherd::Mesh::shard(std::move(worlds[0])), options, 0);
  const auto batch = [&](const std::vector<std::int64_t>& lengths) {
    return batch_of(lengths, config.shape.vocab_size);
  };
  const auto training = compare(rounds, [&](const auto& lengths) { train(model, batch(lengths)); });
  const auto evaluation =
      compare(rounds, [&](const auto& lengths) { evaluate(model, batch(lengths)); });
  std::printf("%s\n", nlohmann::ordered_json{{"dtype", dtype},
                                             {"threads", at::get_num_threads()},
                                             {"training", training},
                                             {"evaluation", evaluation}}
                          .dump()
                          .c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: %s CONFIG.json [float32|bfloat16] [ROUNDS]\n", argv[0]);
    return 64;
  }
  run(argv[1], argc > 2 ? argv[2] : "float32", argc > 3 ? std::atoi(argv[3]) : kDefaultRounds);
  return 0;
}
