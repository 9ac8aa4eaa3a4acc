#include "llm/train/run_data.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include <fmt/core.h>

#include "files/sha256.h"
#include "llm/data/sampler.h"
#include "llm/inputs/source.h"
#include "llm/train/agreement.h"
#include "llm/train/model_identity.h"
#include "llm/train/options_of_config.h"
#include "llm/train/prepared_data.h"
#include "llm/train/schedule.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

// The files as they were at the start.
struct Sources {
  std::vector<inputs::Source> training;
  std::vector<inputs::Source> heldout;
};

Sources open_sources(const config::RunConfig& config) {
  const auto digests = inputs::digest_folder(inputs::store_folder(config.data.cache));
  Sources sources;
  for (const config::DataSet& set : config.data.train) {
    sources.training.push_back(
        inputs::open_source(set.path, training_reading_of(set, config.data), digests));
  }
  for (const config::DataSet& set : config.data.eval) {
    sources.heldout.push_back(inputs::open_source(set.path, reading_of(set, config.data), digests));
  }
  return sources;
}

// Of one file its digest, of several that of theirs.
std::string digest_of(const std::vector<inputs::Source>& sources) {
  std::string digests;
  for (const inputs::Source& source : sources) {
    digests += source.file.sha256;
  }
  return sources.size() > 1 ? sherd::files::sha256_of(digests) : digests;
}

DataIdentity identity_of(const Sources& sources, const text::Tokenizer& tokenizer,
                         std::int64_t samples) {
  DataIdentity identity{"", samples, digest_of(sources.training), tokenizer.sha256()};
  for (const inputs::Source& source : sources.training) {
    identity.path += (identity.path.empty() ? "" : ", ") + source.file.name;
  }
  return identity;
}

// The content of data files; and what random weights are drawn by, where these are wanted.
Settings content_of(const Sources& sources, const config::RunConfig& config,
                    const ModelShape& shape) {
  Settings content = {{"the content of data.train (SHA-256)", digest_of(sources.training)},
                      {"the content of data.eval (SHA-256)",
                       sources.heldout.empty() ? "not given" : digest_of(sources.heldout)}};
  if (config.model.init == config::Init::Random) {
    content.emplace_back("config.json: initializer_range",
                         fmt::format("{}", shape.config.shape.initializer_range));
  }
  return content;
}

}  // namespace

bool RunData::learns_conversations() const {
  return std::any_of(parts.begin(), parts.end(),
                     [](const TrainingPart& part) { return part.report.conversations > 0; });
}

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

// What data files are read with.
struct Reading {
  const config::RunConfig& config;
  const text::PromptEncoder& encoder;
  sherd::World& world;
  const Say& say;
  track::Progress* progress;  // null on ranks other than 0

  [[nodiscard]] DataPreparation preparation() const {
    return {inputs::store_folder(config.data.cache), config.data.prepare_memory.bytes};
  }
};

// Says how files were encoded, what was recognised of them, and what of them was not read; of one
// that is trained on and evaluated, this once.
class FileReports {
 public:
  explicit FileReports(const Say& say) : say_(say) {}

  void tell(const std::string& what, const data::DataFile& file,
            const data::DatasetReport& report) {
    say_(what + ": " + report.sentence());
    for (const std::string& text : {file.note, report.unread.sentence()}) {
      const std::string line = file.name + ": " + text;
      if (!text.empty() && told_.insert(line).second) {
        say_(line);
      }
    }
  }

 private:
  const Say& say_;
  std::set<std::string> told_;
};

// Whether a file that is trained on is evaluated too, with the same samples: one store serves both.
bool is_evaluated(const Reading& reading, const Sources& sources, std::size_t training) {
  const config::DataSet& set = reading.config.data.train[training];
  for (std::size_t i = 0; i < sources.heldout.size(); ++i) {
    const config::DataSet& other = reading.config.data.eval[i];
    const data::DataFile& heldout = sources.heldout[i].file;
    const data::DataFile& trained = sources.training[training].file;
    if (heldout.sha256 == trained.sha256 && heldout.reading.side == trained.reading.side &&
        other.limit == set.limit && other.limit_order == set.limit_order) {
      return true;
    }
  }
  return false;
}

// All training files as one data set.
void read_training(RunData& data, const Reading& reading, const Sources& sources,
                   FileReports& reports) {
  const auto seed = static_cast<std::uint64_t>(reading.config.train.seed);
  std::vector<data::Part> parts;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < sources.training.size(); ++i) {
    const config::DataSet& set = reading.config.data.train[i];
    const data::DataFile& file = sources.training[i].file;
    inputs::Prepared prepared =
        prepare_on_ranks(reading.world, sources.training[i], reading.encoder, reading.preparation(),
                         limit_of(set, reading.config.train), is_evaluated(reading, sources, i),
                         reading.say, reading.progress);
    reports.tell("data", file, prepared.report);
    append(data.skipped, prepared.skipped);
    const data::Samples samples(prepared.store);
    const auto count =
        static_cast<std::int64_t>(data::weighted(samples.size(), set.weight, seed).size());
    data.parts.push_back(
        {std::move(prepared.report), first, count, file.reading.format, file.sha256});
    first += count;
    parts.push_back({samples, set.weight});
  }
  data.training = read_on_all_ranks(reading.world, [&] { return data::mixed(parts, seed); });
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
  const double share = room == 0 ? 0 : 100.0 * static_cast<double>(samples.tokens()) / room;
  say(fmt::format("packing: {} samples in {} rows of at most {} tokens, {} % full", count,
                  rows.size(), capacity_tokens, std::lround(share)));
  return rows;
}

Heldout heldout_of(const Reading& reading, const inputs::Source& source, const data::Limit& limit,
                   FileReports& reports) {
  data::Dataset dataset =
      load_dataset_on_ranks(reading.world, source, reading.encoder, reading.preparation(), limit,
                            reading.say, reading.progress);
  reports.tell("evaluation data", source.file, dataset.report);
  return {std::move(dataset), source.file.sha256, source.file.reading.format};
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
  Sources sources;
  on_all_ranks(world, [&] {
    const sherd::WorkPhase opening(world, "reading data files", kLongestSilence);
    tokenizer.check_vocabulary(model.vocab_rows());
    sources = open_sources(config);
  });
  require_agreement(
      world, with_model_identity(content_of(sources, config, shape), shape.config, tokenizer));
  const std::int64_t context = model.context_length();
  const std::int64_t asked = config.data.max_length.value_or(0);
  if (const auto remark = length_remark("data.max_length", asked, context); !remark.empty()) {
    say(remark);
  }
  std::optional<text::PromptEncoder> encoder;
  on_all_ranks(world, [&] {
    encoder.emplace(prompt_encoder_of(
        config.data, tokenizer, {sample_length(asked, context), config.data.max_answer_tokens}));
  });
  const Reading reading{config, *encoder, world, say, progress};
  RunData found;
  FileReports reports(say);
  read_training(found, reading, sources, reports);
  found.rows = read_on_all_ranks(world, [&] {
    return rows_of(config, found.training, encoder->limits().max_length_tokens, say);
  });
  found.identity =
      identity_of(sources, tokenizer, static_cast<std::int64_t>(found.training.size()));
  for (std::size_t i = 0; i < sources.heldout.size(); ++i) {
    found.heldout.push_back(heldout_of(reading, sources.heldout[i],
                                       limit_of(config.data.eval[i], config.train), reports));
    append(found.skipped, found.heldout.back().dataset.file.skipped);
  }
  on_all_ranks(world, [&] { found.length = run_length(config, found.rows.size()); });
  return found;
}

}  // namespace llm::train
