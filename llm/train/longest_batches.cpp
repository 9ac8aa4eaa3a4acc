#include "llm/train/longest_batches.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "llm/data/sampler.h"

namespace llm::train {

namespace {

using Indices = std::vector<std::int64_t>;

// The batch with most tokens of those that are offered.
class Longest {
 public:
  void offer(const data::Samples& samples, const Indices& indices) {
    std::int64_t tokens = 0;
    for (const std::int64_t index : indices) {
      tokens += static_cast<std::int64_t>(samples[static_cast<size_t>(index)].ids.size());
    }
    if (tokens <= tokens_) {
      return;
    }
    tokens_ = tokens;
    batch_ = {};
    for (const std::int64_t index : indices) {
      const data::Sample sample = samples[static_cast<size_t>(index)];
      batch_.sample_tokens.push_back(static_cast<std::int64_t>(sample.ids.size()));
      batch_.supervised_tokens.push_back(sample.supervised_tokens());
    }
  }
  [[nodiscard]] const plan::MicroBatch& batch() const { return batch_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

 private:
  plan::MicroBatch batch_;
  std::int64_t tokens_ = -1;
};

Longest longest_of_training(const RunData& data, const config::TrainSection& train,
                            const data::BatchShape& shape) {
  data::Sampler sampler(data.length.rows, train.global_batch,
                        static_cast<std::uint64_t>(train.seed));
  Longest longest;
  for (std::int64_t step = 0; step < data.length.total_steps; ++step) {
    const Indices rows = sampler.batch(step);
    const std::int64_t count = shape.micro_batches(static_cast<std::int64_t>(rows.size()));
    for (std::int64_t place = 0; place < count * shape.world; ++place) {
      longest.offer(data.training, data.rows.samples_of(shape.samples_of(rows, place / shape.world,
                                                                         place % shape.world)));
    }
  }
  return longest;
}

std::int64_t new_tokens(const config::RunConfig& config) {
  return config.eval.generate ? config.data.max_answer_tokens : 0;
}

// Ranks are dealt batches in the order of the file.
std::optional<plan::PlannedEvaluation> longest_of_evaluation(const RunData& data,
                                                             const config::RunConfig& config) {
  Longest longest;
  for (const Heldout& heldout : data.heldout) {
    const auto count = static_cast<std::int64_t>(heldout.dataset.samples.size());
    for (std::int64_t first = 0; first < count; first += config.eval.batch) {
      Indices indices(static_cast<size_t>(std::min(config.eval.batch, count - first)));
      std::iota(indices.begin(), indices.end(), first);
      longest.offer(heldout.dataset.samples, indices);
    }
  }
  if (longest.tokens() < 0) {
    return std::nullopt;
  }
  return plan::PlannedEvaluation{longest.batch(), new_tokens(config)};
}

std::string samples_text(size_t samples) {
  return fmt::format("{} sample{}", samples, samples == 1 ? "" : "s");
}

}  // namespace

LongestBatches longest_batches(const RunData& data, const config::RunConfig& config,
                               const data::BatchShape& shape) {
  const Longest training = longest_of_training(data, config.train, shape);
  return {training.batch(), longest_of_evaluation(data, config),
          fmt::format("the longest micro-batch of the data: {}, {} tokens",
                      samples_text(training.batch().sample_tokens.size()), training.tokens())};
}

LongestBatches longest_batches(const config::RunConfig& config, std::int64_t context) {
  const std::int64_t length = sample_length(config.data.max_length.value_or(0), context);
  const auto samples = static_cast<size_t>(config.train.micro_batch);
  const std::vector<std::int64_t> tokens(samples, length);
  LongestBatches longest{.training = {tokens, tokens},
                         .source = fmt::format("without the data: {} of {} tokens, all supervised",
                                               samples_text(samples), length)};
  if (!config.data.eval.empty()) {
    const auto batch = static_cast<size_t>(config.eval.batch);
    const std::int64_t answer = std::min(config.data.max_answer_tokens, length - 1);
    longest.evaluation = {
        {std::vector<std::int64_t>(batch, length), std::vector<std::int64_t>(batch, answer)},
        new_tokens(config)};
  }
  return longest;
}

}  // namespace llm::train
