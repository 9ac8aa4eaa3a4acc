#include "llm/check/data_checks.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "files/sha256.h"
#include "llm/data/dataset.h"
#include "llm/data/sampler.h"
#include "llm/data/subset.h"
#include "llm/text/printable.h"
#include "llm/train/agreement.h"

namespace llm::check {

namespace {

using Indices = std::vector<std::int64_t>;

data::Sampler sampler_of(const train::RunData& data, const config::TrainSection& train) {
  return {data.length.rows, train.global_batch, static_cast<std::uint64_t>(train.seed)};
}

// Of the first epoch, of one rank; visit(samples).
template <class Visit>
void for_each_micro_batch_of(const train::RunData& data, const config::RunConfig& config,
                             const data::BatchShape& shape, std::int64_t rank, const Visit& visit) {
  data::Sampler sampler = sampler_of(data, config.train);
  for (std::int64_t step = 0; step < data.length.steps_per_epoch; ++step) {
    const Indices rows = sampler.batch(step);
    const std::int64_t count = shape.micro_batches(static_cast<std::int64_t>(rows.size()));
    for (std::int64_t micro = 0; micro < count; ++micro) {
      visit(data.rows.samples_of(shape.samples_of(rows, micro, rank)));
    }
  }
}

// Of the first epoch, of one rank.
Indices samples_of_rank(const train::RunData& data, const config::RunConfig& config,
                        const data::BatchShape& shape, int rank) {
  Indices samples;
  for_each_micro_batch_of(data, config, shape, rank, [&](const Indices& some) {
    samples.insert(samples.end(), some.begin(), some.end());
  });
  return samples;
}

// Those of which a token before them in their sample tells the probability.
std::int64_t predicted_labels(const data::Batch& batch) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i + 1 < batch.bounds.size(); ++i) {
    count += std::count_if(batch.labels.begin() + batch.bounds[i] + 1,
                           batch.labels.begin() + batch.bounds[i + 1],
                           [](std::int64_t label) { return label != data::kUnsupervised; });
  }
  return count;
}

std::string digest_of(const Indices& samples) {
  return sherd::files::sha256_of(
      {reinterpret_cast<const char*>(samples.data()), samples.size() * sizeof(std::int64_t)});
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// The questions behind the training samples, in their order.
std::vector<std::string> answers_of(const train::RunData& data, const config::RunConfig& config,
                                    const text::Tokenizer& tokenizer) {
  std::vector<std::string> answers;
  for (std::size_t part = 0; part < data.parts.size(); ++part) {
    const text::QuestionFile file = train::questions_of_part(data, part, config, tokenizer);
    const auto seed = static_cast<std::uint64_t>(config.train.seed);
    const double weight = config.data.train[part].weight;
    for (const std::size_t index : data::weighted(file.questions.size(), weight, seed)) {
      answers.push_back(file.questions[index].answers.front().text);
    }
  }
  return answers;
}

std::string supervised_text(const data::Sample& sample, const text::Tokenizer& tokenizer) {
  std::vector<text::TokenId> ids;
  for (std::size_t i = 0; i < sample.ids.size(); ++i) {
    if (sample.supervised[i] != 0) {
      ids.push_back(sample.ids[i]);
    }
  }
  std::string text = tokenizer.decode(ids);
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // of a character that was cut
  while (text.ends_with(kReplacement)) {
    text.resize(text.size() - kReplacement.size());
  }
  return trimmed(text);
}

// Whether each answer of a sample ends with a token that stops generation, but for a cut one. A
// conversation has several answers: supervised ranges with a prompt between them.
bool answers_end(const data::Sample& sample, const text::Tokenizer& tokenizer) {
  const std::vector<text::TokenId>& stops = tokenizer.stop_ids();
  for (std::size_t i = 0; i < sample.ids.size(); ++i) {
    const bool is_last = i + 1 == sample.ids.size();
    const bool ends_here = sample.supervised[i] == 1 && (is_last || sample.supervised[i + 1] == 0);
    const bool is_cut = is_last && sample.cut.answer_tokens > 0;
    if (ends_here && !is_cut &&
        std::find(stops.begin(), stops.end(), sample.ids[i]) == stops.end()) {
      return false;
    }
  }
  return true;
}

}  // namespace

CheckItem data_order(const train::RunData& data, const config::RunConfig& config,
                     const data::BatchShape& shape, sherd::World& world) {
  const std::vector<std::string> digests =
      world.all_gather(digest_of(samples_of_rank(data, config, shape, world.rank())));
  CheckItem item{"data_order", true, 0, 0, "samples", ""};
  if (world.rank() != 0) {
    return item;  // the first rank counts for all
  }
  std::vector<std::int64_t> seen(data.training.size(), 0);
  std::vector<int> others;
  for (int rank = 0; rank < world.size(); ++rank) {
    const Indices samples = samples_of_rank(data, config, shape, rank);
    for (const std::int64_t sample : samples) {
      ++seen.at(static_cast<std::size_t>(sample));
    }
    if (digest_of(samples) != digests[static_cast<std::size_t>(rank)]) {
      others.push_back(rank);
    }
  }
  const auto missing = std::count(seen.begin(), seen.end(), 0);
  const auto several = std::count_if(seen.begin(), seen.end(), [](auto n) { return n > 1; });
  item.ok = missing + several == 0 && others.empty();
  item.measured = static_cast<double>(missing + several);
  item.message = fmt::format("{} samples of an epoch over {} ranks: {} missing, {} more than once",
                             seen.size(), world.size(), missing, several);
  if (!others.empty()) {
    item.message +=
        fmt::format("; not the samples that rank 0 finds for them: {}", train::names_of(others));
  }
  return item;
}

CheckItem labels(const train::RunData& data, const config::RunConfig& config,
                 const text::Tokenizer& tokenizer, sherd::World& world) {
  constexpr std::size_t kSome = 200;
  std::string wrong;
  double count = 0;
  double different = 0;
  train::on_all_ranks(world, [&] {
    if (world.rank() != 0) {
      return;
    }
    const std::vector<std::string> answers = answers_of(data, config, tokenizer);
    const std::size_t samples = std::min(answers.size(), data.training.size());
    const std::size_t stride = std::max<std::size_t>(1, samples / kSome);
    for (std::size_t i = 0; i < samples; i += stride, ++count) {
      const data::Sample sample = data.training[i];
      const std::string text = supervised_text(sample, tokenizer);
      const std::string answer = trimmed(answers[i]);
      const bool is_answer =
          sample.cut.answer_tokens > 0 ? !text.empty() && answer.starts_with(text) : text == answer;
      if (is_answer && !answers_end(sample, tokenizer)) {
        ++different;
        wrong = fmt::format(
            "; sample {}: an answer does not end with a token that stops generation", i);
      } else if (!is_answer || sample.supervised.back() == 0) {  // the last is the end token
        ++different;
        wrong = fmt::format("; sample {}: {} is not the answer {}", i, text::in_quotes(text),
                            text::in_quotes(answer));
      }
    }
  });
  world.all_reduce({&count, 1});
  world.all_reduce({&different, 1});
  return {"labels",
          different == 0,
          different,
          0,
          "samples",
          fmt::format(
              "what is supervised of {:.0f} samples decodes to their answers in all but {:.0f}{}",
              count, different, wrong)};
}

CheckItem padding(const train::RunData& data, const config::RunConfig& config,
                  const data::BatchShape& shape, sherd::World& world) {
  double totals[] = {0, 0, 0, 0};
  auto& [tokens, of_samples, predicted, supervised] = totals;
  for_each_micro_batch_of(data, config, shape, world.rank(), [&](const Indices& samples) {
    const data::Batch batch = data::collate(data.training, samples);
    totals[0] += static_cast<double>(batch.input_ids.size());
    totals[2] += static_cast<double>(predicted_labels(batch));
    for (const std::int64_t index : samples) {
      const data::Sample sample = data.training[static_cast<std::size_t>(index)];
      totals[1] += static_cast<double>(sample.ids.size());
      totals[3] += static_cast<double>(sample.supervised_tokens());
    }
  });
  world.all_reduce(totals);
  const double extra = tokens - of_samples;
  return {"padding",
          extra == 0 && predicted == supervised,
          tokens == 0 ? 0 : 100 * extra / tokens,
          0,
          "%",
          fmt::format("{:.0f} tokens of an epoch, of which {:.0f} are padding; {:.0f} supervised, "
                      "of which {:.0f} are predicted (micro-batches of {})",
                      tokens, extra, supervised, predicted, shape.micro_batch)};
}

}  // namespace llm::check
