#include "llm/check/data_checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "files/sha256.h"
#include "llm/check/chat_labels.h"
#include "llm/inputs/data_options.h"
#include "llm/inputs/dataset.h"
#include "llm/inputs/record_source.h"
#include "llm/inputs/sampler.h"
#include "llm/inputs/subset.h"
#include "llm/setup/agreement.h"
#include "llm/text/printable.h"

namespace llm::check {

namespace {

using Indices = std::vector<std::int64_t>;

inputs::Sampler sampler_of(const inputs::RunData& data, const config::TrainSection& train) {
  return {data.length.rows, train.global_batch, static_cast<std::uint64_t>(train.seed)};
}

// Of the first epoch, of one rank; visit(samples).
template <class Visit>
void for_each_micro_batch_of(const inputs::RunData& data, const config::RunConfig& config,
                             const inputs::BatchShape& shape, std::int64_t rank,
                             const Visit& visit) {
  inputs::Sampler sampler = sampler_of(data, config.train);
  for (std::int64_t step = 0; step < data.length.steps_per_epoch; ++step) {
    const Indices rows = sampler.batch(step);
    const std::int64_t count = shape.micro_batches(static_cast<std::int64_t>(rows.size()));
    for (std::int64_t micro = 0; micro < count; ++micro) {
      visit(data.rows.samples_of(shape.samples_of(rows, micro, rank)));
    }
  }
}

// Of the first epoch, of one rank.
Indices samples_of_rank(const inputs::RunData& data, const config::RunConfig& config,
                        const inputs::BatchShape& shape, int rank) {
  Indices samples;
  for_each_micro_batch_of(data, config, shape, rank, [&](const Indices& some) {
    samples.insert(samples.end(), some.begin(), some.end());
  });
  return samples;
}

// Those of which a token before them in their sample tells the probability.
std::int64_t predicted_labels(const inputs::Batch& batch) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i + 1 < batch.bounds.size(); ++i) {
    count += std::count_if(batch.labels.begin() + batch.bounds[i] + 1,
                           batch.labels.begin() + batch.bounds[i + 1],
                           [](std::int64_t label) { return label != inputs::kUnsupervised; });
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

std::string supervised_text(const inputs::Sample& sample, const text::Tokenizer& tokenizer) {
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

// As supervised_text() gives a text that has special tokens of its own.
std::string without_special_tokens(std::string text, const text::Tokenizer& tokenizer) {
  for (const std::string& token : tokenizer.special_tokens()) {
    for (std::size_t at = text.find(token); at != std::string::npos; at = text.find(token, at)) {
      text.erase(at, token.size());
    }
  }
  return trimmed(text);
}

// What is wrong with a sample that learns one answer; empty: nothing.
std::string answer_fault(const inputs::Sample& sample, const std::string& given,
                         const text::Tokenizer& tokenizer) {
  const std::string text = supervised_text(sample, tokenizer);
  const std::string answer = without_special_tokens(given, tokenizer);
  const bool is_cut = sample.cut.answer_tokens > 0;
  const bool is_answer = is_cut ? !text.empty() && answer.starts_with(text) : text == answer;
  if (!is_answer || sample.supervised.back() == 0) {  // the last is the end token
    return fmt::format("{} is not the answer {}", text::in_quotes(text), text::in_quotes(answer));
  }
  const std::vector<text::TokenId>& stops = tokenizer.stop_ids();
  const bool ends = std::find(stops.begin(), stops.end(), sample.ids.back()) != stops.end();
  return is_cut || ends ? "" : "an answer does not end with a token that stops generation";
}

// Compares samples of a training file with their records, which it reads once more.
class RecordedSamples {
 public:
  RecordedSamples(const inputs::RunData& data, std::size_t part, const config::RunConfig& config,
                  const text::Tokenizer& tokenizer, const std::set<std::int64_t>& numbers)
      : tokenizer_(tokenizer),
        records_(inputs::records_at(inputs::source_of_part(data, part, config), numbers)),
        encoder_(inputs::prompt_encoder_of(config.data, tokenizer, data.parts[part].report.limits)),
        is_template_(config.data.supervise == config::Supervise::Template) {}

  // What is wrong with a sample of a record, with the record's place; empty: nothing.
  [[nodiscard]] std::string fault(const inputs::Sample& sample, std::int64_t number) const {
    const text::Question& record = records_.at(number).questions.front();
    if (!record.rejected) {
      return fault_of(sample, record);
    }
    const std::vector<inputs::Sample> documents = inputs::documents_of(sample);
    const std::string chosen = fault_of(documents.front(), record);
    return !chosen.empty() ? chosen : fault_of(documents.back(), *record.rejected);
  }

 private:
  [[nodiscard]] std::string fault_of(const inputs::Sample& sample,
                                     const text::Question& record) const {
    if (!record.conversation) {
      const bool has_separator = record.is_record() && !record.question.empty();
      const std::string separator =
          has_separator ? encoder_.options().separator.value_or("") : std::string();
      return answer_fault(sample, separator + record.answers.front().text, tokenizer_);
    }
    if (is_template_) {
      return "";  // the template decides, not the rule
    }
    const text::ChatEncoder& chat = encoder_.chat();
    const std::string fault = chat_fault(sample, expected_answers(*record.conversation, chat),
                                         chat.stop_ids(), tokenizer_);
    return fault.empty() ? "" : fmt::format("{}: {}", record.id, fault);
  }

  const text::Tokenizer& tokenizer_;
  std::map<std::int64_t, text::QuestionFile> records_;
  text::PromptEncoder encoder_;
  bool is_template_;
};

// How many samples were compared with their records, and what was wrong.
struct Compared {
  double samples = 0;
  double different = 0;
  std::string wrong;
};

void compare_part(const inputs::RunData& data, std::size_t number, const config::RunConfig& config,
                  const text::Tokenizer& tokenizer, Compared& compared) {
  constexpr std::size_t kSome = 200;
  const inputs::TrainingPart& part = data.parts[number];
  const auto order = inputs::weighted(part.store->size(), config.data.train[number].weight,
                                      static_cast<std::uint64_t>(config.train.seed));
  const std::size_t stride = std::max<std::size_t>(1, order.size() / kSome);
  std::set<std::int64_t> numbers;
  for (std::size_t i = 0; i < order.size(); i += stride) {
    numbers.insert(part.store->record(order[i]));
  }
  const RecordedSamples recorded(data, number, config, tokenizer, numbers);
  for (std::size_t i = 0; i < order.size(); i += stride) {
    ++compared.samples;
    const std::size_t index = static_cast<std::size_t>(part.first) + i;
    const std::int64_t record = part.store->record(order[i]);
    if (auto fault = recorded.fault(data.training[index], record); !fault.empty()) {
      ++compared.different;
      compared.wrong = fmt::format("; sample {}: {}", index, fault);
    }
  }
}

}  // namespace

CheckItem data_order(const inputs::RunData& data, const config::RunConfig& config,
                     const inputs::BatchShape& shape, sherd::World& world) {
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
  item.message = fmt::format("{} of an epoch over {}: {} missing, {} more than once",
                             text::counted(std::ssize(seen), "sample"),
                             text::counted(world.size(), "rank"), missing, several);
  if (!others.empty()) {
    item.message +=
        fmt::format("; not the samples that rank 0 finds for them: {}", setup::names_of(others));
  }
  return item;
}

CheckItem labels(const inputs::RunData& data, const config::RunConfig& config,
                 const text::Tokenizer& tokenizer, sherd::World& world) {
  Compared compared;
  setup::on_all_ranks(world, [&] {
    for (std::size_t part = 0; world.rank() == 0 && part < data.parts.size(); ++part) {
      compare_part(data, part, config, tokenizer, compared);
    }
  });
  world.all_reduce({&compared.samples, 1});
  world.all_reduce({&compared.different, 1});
  return {"labels",
          compared.different == 0,
          compared.different,
          0,
          "samples",
          fmt::format(
              "what is supervised of {:.0f} samples decodes to their answers in all but {:.0f}{}",
              compared.samples, compared.different, compared.wrong)};
}

CheckItem padding(const inputs::RunData& data, const config::RunConfig& config,
                  const inputs::BatchShape& shape, sherd::World& world) {
  double totals[] = {0, 0, 0, 0};
  auto& [tokens, of_samples, predicted, supervised] = totals;
  for_each_micro_batch_of(data, config, shape, world.rank(), [&](const Indices& samples) {
    const inputs::Batch batch = inputs::collate(data.training, samples);
    totals[0] += static_cast<double>(batch.input_ids.size());
    totals[2] += static_cast<double>(predicted_labels(batch));
    for (const std::int64_t index : samples) {
      const inputs::Sample sample = data.training[static_cast<std::size_t>(index)];
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
