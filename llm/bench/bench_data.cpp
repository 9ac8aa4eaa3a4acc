#include "llm/bench/bench_data.h"

#include <fstream>
#include <iterator>
#include <random>

#include <fmt/core.h>

#include "sherd/error.h"

namespace llm::bench {

namespace {

std::vector<std::int32_t> read_ids(const BenchTokens& tokens, std::int64_t first_id,
                                   std::int64_t count) {
  std::ifstream file(tokens.file, std::ios::binary);
  if (!file) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       tokens.file + ": cannot be read; expected a file of int32 token ids");
  }
  std::vector<std::int32_t> ids(static_cast<size_t>(count));
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(std::int32_t));
  file.seekg(first_id * kBytes);
  file.read(reinterpret_cast<char*>(ids.data()), count * kBytes);
  if (file.gcount() != count * kBytes) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       fmt::format("{}: has fewer than the {} token ids that these steps need. "
                                   "Give a longer file, or fewer steps.",
                                   tokens.file, first_id + count));
  }
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= tokens.vocabulary) {
      throw sherd::Error(sherd::ExitCode::BadData,
                         fmt::format("{}: token id {} is outside [0, {}) of the model", tokens.file,
                                     id, tokens.vocabulary));
    }
  }
  return ids;
}

std::vector<std::int32_t> random_ids(const BenchTokens& tokens, std::int64_t sample) {
  std::seed_seq seed{static_cast<std::uint64_t>(tokens.seed), static_cast<std::uint64_t>(sample)};
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < tokens.sequence; ++i) {
    ids.push_back(
        static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(tokens.vocabulary)));
  }
  return ids;
}

}  // namespace

inputs::Batch bench_batch(const BenchTokens& tokens, std::int64_t first, std::int64_t rows) {
  inputs::Batch batch;
  for (std::int64_t sample = first; sample < first + rows; ++sample) {
    const auto ids = tokens.file.empty()
                         ? random_ids(tokens, sample)
                         : read_ids(tokens, sample * tokens.sequence, tokens.sequence);
    batch.input_ids.insert(batch.input_ids.end(), ids.begin(), ids.end());
    for (std::int64_t i = 0; i < tokens.sequence; ++i) {
      const bool counts = i > 0 && i >= tokens.sequence - tokens.supervised;
      batch.labels.push_back(counts ? ids[static_cast<size_t>(i)] : inputs::kUnsupervised);
      batch.supervised_tokens += counts ? 1 : 0;
    }
    batch.bounds.push_back(std::ssize(batch.input_ids));
    batch.numbers.push_back(sample);
  }
  return batch;
}

}  // namespace llm::bench
