#include "llm/plan/planned_batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "llm/inputs/sampler.h"

namespace llm::plan {

namespace {

using Indices = std::vector<std::int64_t>;

// A pair is two documents; how its supervised tokens are shared between them changes no shape.
void add_sample(MicroBatch& batch, const inputs::Samples& samples, size_t index) {
  const std::int64_t length = samples.length(index), supervised = samples.supervised(index);
  const std::int64_t chosen = samples.rejected_begin(index);
  if (chosen == 0) {
    batch.sample_tokens.push_back(length);
    batch.supervised_tokens.push_back(supervised);
    return;
  }
  const std::int64_t of_rejected =
      std::clamp(supervised / 2, supervised - std::min(supervised, chosen), length - chosen);
  batch.sample_tokens.insert(batch.sample_tokens.end(), {chosen, length - chosen});
  batch.supervised_tokens.insert(batch.supervised_tokens.end(),
                                 {supervised - of_rejected, of_rejected});
}

MicroBatch batch_of(const inputs::Samples& samples, const Indices& indices) {
  MicroBatch batch;
  for (const std::int64_t index : indices) {
    add_sample(batch, samples, static_cast<size_t>(index));
  }
  return batch;
}

std::int64_t tokens_of(const MicroBatch& batch) {
  return std::accumulate(batch.sample_tokens.begin(), batch.sample_tokens.end(), std::int64_t{0});
}

std::int64_t tokens_of(const inputs::Samples& samples, const Indices& indices) {
  std::int64_t tokens = 0;
  for (const std::int64_t index : indices) {
    tokens += samples.length(static_cast<size_t>(index));
  }
  return tokens;
}

void keep_longer(MicroBatch& longest, MicroBatch offered) {
  if (longest.sample_tokens.empty() || tokens_of(offered) > tokens_of(longest)) {
    longest = std::move(offered);
  }
}

std::int64_t documents_per_sample(const config::TrainSection& train) {
  return train.objective == config::Objective::Dpo ? 2 : 1;
}

// Of `documents` documents, with as many tokens of each kind; whole samples of them.
MicroBatch even_batch(double documents, std::int64_t of_a_sample, double tokens,
                      double supervised) {
  const auto per_sample = static_cast<double>(of_a_sample);
  const auto count =
      static_cast<size_t>(per_sample * std::max(1.0, std::round(documents / per_sample)));
  const auto each = [&](double all) {
    return std::vector<std::int64_t>(
        count, std::max<std::int64_t>(1, std::llround(all / static_cast<double>(count))));
  };
  return {each(tokens), each(supervised)};
}

// Ranks compute a micro-batch at the same time: what is typical is how long the longest is.
PlannedBatches batches_of_training(const inputs::RunData& data, const config::TrainSection& train,
                                   const inputs::BatchShape& shape) {
  inputs::Sampler sampler(data.length.rows, train.global_batch,
                          static_cast<std::uint64_t>(train.seed));
  PlannedBatches batches;
  double tokens = 0, longest_tokens = 0, longest_supervised = 0, documents = 0, micro_batches = 0;
  for (std::int64_t step = 0; step < data.length.total_steps; ++step) {
    const Indices rows = sampler.batch(step);
    const std::int64_t count = shape.micro_batches(static_cast<std::int64_t>(rows.size()));
    for (std::int64_t micro = 0; micro < count; ++micro) {
      Indices indices;
      std::int64_t most = -1;
      for (std::int64_t rank = 0; rank < shape.world; ++rank) {
        Indices of_rank = data.rows.samples_of(shape.samples_of(rows, micro, rank));
        const std::int64_t count_of_rank = tokens_of(data.training, of_rank);
        tokens += static_cast<double>(count_of_rank);
        if (count_of_rank > most) {
          most = count_of_rank;
          indices = std::move(of_rank);
        }
      }
      MicroBatch longest = batch_of(data.training, indices);
      ++micro_batches;
      documents += static_cast<double>(longest.sample_tokens.size());
      longest_tokens += static_cast<double>(tokens_of(longest));
      longest_supervised += static_cast<double>(std::accumulate(
          longest.supervised_tokens.begin(), longest.supervised_tokens.end(), std::int64_t{0}));
      if (tokens_of(longest) > tokens_of(batches.training)) {
        batches.training = std::move(longest);
        batches.training_samples = std::move(indices);
      }
    }
  }
  batches.typical = even_batch(documents / micro_batches, documents_per_sample(train),
                               longest_tokens / micro_batches, longest_supervised / micro_batches);
  batches.tokens_a_step = tokens / static_cast<double>(data.length.total_steps);
  return batches;
}

std::int64_t new_tokens(const config::RunConfig& config) {
  return config.eval.generate ? config.data.max_answer_tokens : 0;
}

// Ranks are dealt batches in the order of the file.
std::optional<PlannedEvaluation> longest_of_evaluation(const inputs::RunData& data,
                                                       const config::RunConfig& config) {
  MicroBatch longest;
  for (const inputs::Heldout& heldout : data.heldout) {
    const auto count = static_cast<std::int64_t>(heldout.dataset.samples.size());
    for (std::int64_t first = 0; first < count; first += config.eval.batch) {
      Indices indices(static_cast<size_t>(std::min(config.eval.batch, count - first)));
      std::iota(indices.begin(), indices.end(), first);
      keep_longer(longest, batch_of(heldout.dataset.samples, indices));
    }
  }
  if (longest.sample_tokens.empty()) {
    return std::nullopt;
  }
  return PlannedEvaluation{longest, new_tokens(config)};
}

std::string documents_text(size_t documents, const config::RunConfig& config) {
  if (config.train.objective == config::Objective::Dpo) {
    return fmt::format("{} pair{}", documents / 2, documents == 2 ? "" : "s");
  }
  return fmt::format("{} sample{}", documents, documents == 1 ? "" : "s");
}

}  // namespace

PlannedBatches planned_batches(const inputs::RunData& data, const config::RunConfig& config,
                               const inputs::BatchShape& shape) {
  PlannedBatches batches = batches_of_training(data, config.train, shape);
  batches.evaluation = longest_of_evaluation(data, config);
  batches.source = fmt::format("the longest micro-batch of the data: {}, {} tokens",
                               documents_text(batches.training.sample_tokens.size(), config),
                               tokens_of(batches.training));
  return batches;
}

PlannedBatches planned_batches(const config::RunConfig& config, std::int64_t context) {
  const std::int64_t length = inputs::sample_length(config.data.max_length.value_or(0), context);
  const std::int64_t per_sample = documents_per_sample(config.train);
  const auto samples = static_cast<size_t>(config.train.micro_batch.value_or(1) * per_sample);
  const std::vector<std::int64_t> tokens(samples, length);
  PlannedBatches longest{
      .training = {tokens, tokens},
      .typical = {tokens, tokens},
      .tokens_a_step = static_cast<double>(config.train.global_batch * per_sample * length),
      .source = fmt::format("without the data: {} of {} tokens, all supervised",
                            documents_text(samples, config), length)};
  if (!config.data.eval.empty()) {
    const auto batch = static_cast<size_t>(config.eval.batch * per_sample);
    const std::int64_t answer = std::min(config.data.max_answer_tokens, length - 1);
    longest.evaluation = {
        {std::vector<std::int64_t>(batch, length), std::vector<std::int64_t>(batch, answer)},
        new_tokens(config)};
  }
  return longest;
}

}  // namespace llm::plan
