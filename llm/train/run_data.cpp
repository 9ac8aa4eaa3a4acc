#include "llm/train/run_data.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/core.h>

#include "files/sha256.h"
#include "llm/data/sampler.h"
#include "llm/data/token_cache.h"
#include "llm/train/agreement.h"
#include "llm/train/model_identity.h"
#include "llm/train/options_of_config.h"
#include "llm/train/schedule.h"
#include "llm/train/tokenize_once.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

// The files as they were at the start.
struct Files {
  std::vector<data::DataFile> training;
  std::vector<data::DataFile> heldout;
};

Files read_files(const config::RunConfig& config) {
  Files files;
  for (const config::DataSet& set : config.data.train) {
    files.training.push_back(data::read_data_file(set.path, training_reading_of(set, config.data)));
  }
  for (const config::DataSet& set : config.data.eval) {
    files.heldout.push_back(data::read_data_file(set.path, reading_of(set, config.data)));
  }
  return files;
}

// Of one file its digest, of several that of theirs.
std::string digest_of(const std::vector<data::DataFile>& files) {
  std::string digests;
  for (const data::DataFile& file : files) {
    digests += file.sha256;
  }
  return files.size() > 1 ? sherd::files::sha256_of(digests) : digests;
}

DataIdentity identity_of(const Files& files, const text::Tokenizer& tokenizer,
                         std::int64_t samples) {
  DataIdentity identity{"", samples, digest_of(files.training), tokenizer.sha256()};
  for (const data::DataFile& file : files.training) {
    identity.path += (identity.path.empty() ? "" : ", ") + file.name;
  }
  return identity;
}

// The content of data files; and what random weights are drawn by, where these are wanted.
Settings content_of(const Files& files, const config::RunConfig& config, const ModelShape& shape) {
  Settings content = {{"the content of data.train (SHA-256)", digest_of(files.training)},
                      {"the content of data.eval (SHA-256)",
                       files.heldout.empty() ? "not given" : digest_of(files.heldout)}};
  if (config.model.init == config::Init::Random) {
    content.emplace_back("config.json: initializer_range",
                         fmt::format("{}", shape.config.shape.initializer_range));
  }
  return content;
}

}  // namespace

RunLength run_length(const config::RunConfig& config, std::int64_t rows) {
  const std::int64_t batch = config.train.global_batch;
  RunLength length{rows, (rows + batch - 1) / batch, 0};
  length.total_steps =
      config.train.max_steps.value_or(config.train.epochs * length.steps_per_epoch);
  const std::int64_t warmup = warmup_steps(config.schedule.warmup, length.total_steps);
  if (warmup > length.total_steps) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("schedule.warmup = \"{}\" is longer than the run, which has {} "
                    "steps ({} {}, train.global_batch = {}): the learning rate "
                    "would never be reached. Set it to at most that, or train for "
                    "longer.",
                    config::to_text(config::Every::steps(warmup)), length.total_steps, rows,
                    config.data.packing == config::Packing::None ? "samples" : "rows", batch));
  }
  return length;
}

std::int64_t sample_length(std::int64_t asked, std::int64_t context) {
  return asked == 0 ? context : std::min(asked, context);
}

std::string length_remark(const std::string& key, std::int64_t asked, std::int64_t context) {
  return asked <= context
             ? ""
             : fmt::format("{} = {} is more than the model's context: {} tokens are used", key,
                           asked, context);
}

namespace {

void append(std::vector<text::BadSample>& all, const std::vector<text::BadSample>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void say_note(const data::DataFile& file, const Say& say) {
  if (!file.note.empty()) {
    say(file.name + ": " + file.note);
  }
}

// All training files as one data set.
void read_training(RunData& data, const config::RunConfig& config, const Files& files,
                   const data::TokenCache& cache, const text::PromptEncoder& encoder,
                   sherd::World& world, const Say& say, track::Progress* progress) {
  const auto seed = static_cast<std::uint64_t>(config.train.seed);
  std::vector<data::Part> parts;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < files.training.size(); ++i) {
    const config::DataSet& set = config.data.train[i];
    TokenizedOnce once = tokenize_once(world, cache, files.training[i], encoder,
                                       limit_of(set, config.train), say, progress);
    say("data: " + once.tokens.report.sentence());
    say_note(files.training[i], say);
    append(data.skipped, once.skipped);
    const auto count = static_cast<std::int64_t>(
        data::weighted(once.tokens.samples.size(), set.weight, seed).size());
    data.parts.push_back({std::move(once.tokens.report), first, count,
                          files.training[i].reading.format, files.training[i].sha256});
    first += count;
    parts.push_back({std::move(once.tokens.samples), set.weight});
  }
  data.training = read_together(world, [&] { return data::mixed(parts, seed); });
}

data::Rows rows_of(const config::RunConfig& config, const data::Samples& samples,
                   std::int64_t capacity_tokens, const Say& say) {
  const auto count = static_cast<std::int64_t>(samples.size());
  if (config.data.packing == config::Packing::None) {
    return data::Rows::one_each(count);
  }
  data::Rows rows = data::Rows::first_fit(samples, capacity_tokens,
                                          static_cast<std::uint64_t>(config.train.seed));
  const double room = static_cast<double>(rows.size() * capacity_tokens);
  const double share =
      room == 0 ? 0 : 100.0 * static_cast<double>(samples.arrays().ids.size()) / room;
  say(fmt::format("packing: {} samples in {} rows of at most {} tokens, {} % full", count,
                  rows.size(), capacity_tokens, std::lround(share)));
  return rows;
}

Heldout heldout_of(const data::DataFile& file, const data::Limit& limit,
                   const data::TokenCache& cache, const text::PromptEncoder& encoder,
                   sherd::World& world, const Say& say, track::Progress* progress) {
  data::Dataset dataset = load_dataset_once(world, cache, file, encoder, limit, say, progress);
  say("evaluation data: " + dataset.report.sentence());
  say_note(file, say);
  return {std::move(dataset), file.sha256, file.reading.format};
}

}  // namespace

text::QuestionFile questions_of_part(const RunData& data, std::size_t part,
                                     const config::RunConfig& config,
                                     const text::Tokenizer& tokenizer) {
  const config::DataSet& set = config.data.train[part];
  const data::DatasetReport& report = data.parts[part].report;
  const data::DataFile file = data::read_data_file(set.path, training_reading_of(set, config.data));
  if (file.sha256 != data.parts[part].sha256) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("'{}' has changed since it was tokenized: its SHA-256 was {} and is now {}. "
                    "Start again.",
                    file.name, data.parts[part].sha256, file.sha256));
  }
  return data::questions_of(file, limit_of(set, config.train), report,
                            prompt_encoder_of(config.data, tokenizer, report.limits));
}

config::RunConfig with_formats(config::RunConfig config, const RunData& data) {
  for (std::size_t i = 0; i < data.parts.size(); ++i) {
    config.data.train[i].format = data.parts[i].format;
  }
  for (std::size_t i = 0; i < data.heldout.size(); ++i) {
    config.data.eval[i].format = data.heldout[i].format;
  }
  return config;
}

RunData load_run_data(const config::RunConfig& config, const text::Tokenizer& tokenizer,
                      const ModelShape& shape, sherd::World& world, const Say& say,
                      track::Progress* progress) {
  const model::CausalLmImpl& model = *shape.shapes;
  Files files;
  together(world, [&] {
    const sherd::WorkPhase reading(world, "reading data files", kLongestSilence);
    tokenizer.check_vocabulary(model.vocab_rows());
    files = read_files(config);
  });
  require_agreement(world,
                    with_model_identity(content_of(files, config, shape), shape.config, tokenizer));
  const std::int64_t context = model.context_length();
  const std::int64_t asked = config.data.max_length.value_or(0);
  if (const auto remark = length_remark("data.max_length", asked, context); !remark.empty()) {
    say(remark);
  }
  std::optional<text::PromptEncoder> encoder;
  together(world, [&] {
    encoder.emplace(prompt_encoder_of(
        config.data, tokenizer, {sample_length(asked, context), config.data.max_answer_tokens}));
  });
  const data::TokenCache cache(config.data.cache == "auto" ? "" : config.data.cache);
  RunData found;
  read_training(found, config, files, cache, *encoder, world, say, progress);
  found.rows = read_together(world, [&] {
    return rows_of(config, found.training, encoder->limits().max_length_tokens, say);
  });
  found.identity = identity_of(files, tokenizer, static_cast<std::int64_t>(found.training.size()));
  for (std::size_t i = 0; i < files.heldout.size(); ++i) {
    const data::Limit limit = limit_of(config.data.eval[i], config.train);
    found.heldout.push_back(
        heldout_of(files.heldout[i], limit, cache, *encoder, world, say, progress));
    append(found.skipped, found.heldout.back().dataset.file.skipped);
  }
  together(world, [&] { found.length = run_length(config, found.rows.size()); });
  return found;
}

}  // namespace llm::train
