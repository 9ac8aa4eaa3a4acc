// Greedy generation with random weights: seconds for the texts of one data set of prompts of
// different length, batch after batch, as `sherd eval` writes answers.
//
//   OMP_NUM_THREADS=2 build/release/bin/generation MODEL_FOLDER [DTYPE]     (bfloat16 or float32)
//
// Prompts are read from the folder's prompts.json: lists of ids. benchmarks/generate writes it, and
// runs this program and Hugging Face's generate in turns. Prints one line of JSON.

#include "llm/eval/generation.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "llm/io/hf_config.h"
#include "llm/setup/load_model.h"

namespace {

constexpr std::size_t kBatch = 16;
constexpr std::int64_t kNewTokens = 32;

using Prompts = std::vector<std::vector<llm::text::TokenId>>;

int run(const std::string& folder, const std::string& dtype) {
  const auto prompts =
      nlohmann::json::parse(std::ifstream(folder + "/prompts.json")).get<Prompts>();
  std::vector<sherd::World> worlds = sherd::World::in_process(1);
  sherd::ShardOptions options;
  options.precision.param_dtype = llm::io::dtype_of_name(dtype).value();
  auto model = llm::setup::load_sharded(folder, sherd::Mesh::shard(std::move(worlds[0])), options);
  const auto generate = [&](std::size_t questions, std::int64_t new_tokens) {
    std::vector<std::vector<llm::text::TokenId>> texts;
    for (std::size_t begin = 0; begin < questions; begin += kBatch) {
      const auto batch =
          std::span(prompts).subspan(begin, std::min(kBatch, prompts.size() - begin));
      const auto written = llm::eval::generate(model, batch, new_tokens, {}).value();
      texts.insert(texts.end(), written.begin(), written.end());
    }
    return texts;
  };
  const auto seconds_of = [&](std::int64_t new_tokens) {
    const auto start = std::chrono::steady_clock::now();
    auto texts = generate(prompts.size(), new_tokens);
    const auto end = std::chrono::steady_clock::now();
    return std::pair(std::chrono::duration<double>(end - start).count(), std::move(texts));
  };
  (void)generate(1, kNewTokens);  // warm
  const auto [seconds, texts] = seconds_of(kNewTokens);
  const double prompt_seconds = seconds_of(1).first;
  std::printf("%s\n", nlohmann::json{{"seconds", seconds},
                                     {"prompt_seconds", prompt_seconds},
                                     {"threads", at::get_num_threads()},
                                     {"dtype", dtype},
                                     {"texts", texts}}
                          .dump()
                          .c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER [bfloat16|float32]\n", argv[0]);
    return 64;
  }
  return run(argv[1], argc == 3 ? argv[2] : "float32");
}
