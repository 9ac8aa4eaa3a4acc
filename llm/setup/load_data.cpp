#include "llm/setup/load_data.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/core.h>

#include "files/sha256.h"
#include "llm/inputs/data_options.h"
#include "llm/inputs/sampler.h"
#include "llm/inputs/source.h"
#include "llm/setup/agreement.h"
#include "llm/setup/model_identity.h"
#include "llm/setup/prepared_data.h"
#include "llm/text/printable.h"

namespace llm::setup {

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
        inputs::open_source(set.path, inputs::training_reading_of(set, config.data), digests));
  }
  for (const config::DataSet& set : config.data.eval) {
    sources.heldout.push_back(
        inputs::open_source(set.path, inputs::reading_of(set, config.data), digests));
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

inputs::DataIdentity identity_of(const Sources& sources, const text::Tokenizer& tokenizer,
                                 std::int64_t samples) {
  inputs::DataIdentity identity{"", samples, digest_of(sources.training), tokenizer.sha256()};
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

void append(std::vector<text::BadSample>& all, const std::vector<text::BadSample>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// What data files are read with.
struct Reading {
  const config::RunConfig& config;
  const text::PromptEncoder& encoder;
  sherd::World& world;
  const track::Say& say;
  track::Progress* progress;  // null on ranks other than 0

  [[nodiscard]] DataPreparation preparation() const {
    return {inputs::store_folder(config.data.cache), config.data.prepare_memory.bytes};
  }
};

// Says how files were encoded, what was recognised of them, and what of them was not read; of one
// that is trained on and evaluated, this once.
class FileReports {
 public:
  explicit FileReports(const track::Say& say) : say_(say) {}

  void tell(const std::string& what, const inputs::DataFile& file,
            const inputs::DatasetReport& report) {
    say_(what + ": " + report.sentence());
    for (const std::string& text : {file.note, report.unread.sentence()}) {
      const std::string line = file.name + ": " + text;
      if (!text.empty() && told_.insert(line).second) {
        say_(line);
      }
    }
  }

 private:
  const track::Say& say_;
  std::set<std::string> told_;
};

// Whether a file that is trained on is evaluated too, with the same samples: one store serves both.
bool is_evaluated(const Reading& reading, const Sources& sources, std::size_t training) {
  const config::DataSet& set = reading.config.data.train[training];
  for (std::size_t i = 0; i < sources.heldout.size(); ++i) {
    const config::DataSet& other = reading.config.data.eval[i];
    const inputs::DataFile& heldout = sources.heldout[i].file;
    const inputs::DataFile& trained = sources.training[training].file;
    if (heldout.sha256 == trained.sha256 && heldout.reading.side == trained.reading.side &&
        other.limit == set.limit && other.limit_order == set.limit_order) {
      return true;
    }
  }
  return false;
}

// All training files as one data set.
void read_training(inputs::RunData& data, const Reading& reading, const Sources& sources,
                   FileReports& reports) {
  const auto seed = static_cast<std::uint64_t>(reading.config.train.seed);
  std::vector<inputs::Part> parts;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < sources.training.size(); ++i) {
    const config::DataSet& set = reading.config.data.train[i];
    const inputs::DataFile& file = sources.training[i].file;
    inputs::Prepared prepared =
        prepare_on_ranks(reading.world, sources.training[i], reading.encoder, reading.preparation(),
                         inputs::limit_of(set, reading.config.train),
                         is_evaluated(reading, sources, i), reading.say, reading.progress);
    reports.tell("data", file, prepared.report);
    append(data.skipped, prepared.skipped);
    const inputs::Samples samples(prepared.store);
    const auto count =
        static_cast<std::int64_t>(inputs::weighted(samples.size(), set.weight, seed).size());
    data.parts.push_back({std::move(prepared.report), first, count, file.reading.format,
                          file.sha256, prepared.store});
    first += count;
    parts.push_back({samples, set.weight});
  }
  data.training = read_on_all_ranks(reading.world, [&] { return inputs::mixed(parts, seed); });
}

inputs::Rows rows_of(const config::RunConfig& config, const inputs::Samples& samples,
                     std::int64_t text_tokens, const track::Say& say) {
  // A pair is two texts, each of which may be as long as a sample of one.
  const std::int64_t capacity_tokens =
      text_tokens * (config.train.objective == config::Objective::Dpo ? 2 : 1);
  const auto count = static_cast<std::int64_t>(samples.size());
  if (config.data.packing == config::Packing::None) {
    return inputs::Rows::one_each(count);
  }
  inputs::Rows rows = inputs::Rows::first_fit(samples, capacity_tokens,
                                              static_cast<std::uint64_t>(config.train.seed));
  const double room = static_cast<double>(rows.size() * capacity_tokens);
  const double share = room == 0 ? 0 : 100.0 * static_cast<double>(samples.tokens()) / room;
  say(fmt::format("packing: {} in {} of at most {} tokens, {} % full",
                  text::counted(count, "sample"), text::counted(rows.size(), "row"),
                  capacity_tokens, std::lround(share)));
  return rows;
}

// A sample that cannot be read belongs to neither side of data.held_out, and a file may be trained
// on and evaluated: what was skipped is listed once, and counted once of the two sides.
void list_once(inputs::Dataset& side, bool is_held_out,
               const std::vector<text::BadSample>& skipped) {
  const auto place_of = [](const text::BadSample& sample) {
    return std::tie(sample.source, sample.unit, sample.place);
  };
  std::set<decltype(place_of(skipped.front()))> places;
  for (const text::BadSample& sample : skipped) {
    places.insert(place_of(sample));
  }
  const auto listed =
      static_cast<std::int64_t>(std::erase_if(side.skipped, [&](const text::BadSample& sample) {
        return places.contains(place_of(sample));
      }));
  side.report.skipped -= is_held_out ? listed : 0;
}

inputs::Heldout heldout_of(const Reading& reading, const inputs::Source& source,
                           const inputs::Limit& limit, const std::vector<text::BadSample>& skipped,
                           FileReports& reports) {
  inputs::Dataset dataset =
      load_dataset_on_ranks(reading.world, source, reading.encoder, reading.preparation(), limit,
                            reading.say, reading.progress);
  list_once(dataset, source.file.reading.side == inputs::Side::HeldOut, skipped);
  reports.tell("evaluation data", source.file, dataset.report);
  return {std::move(dataset), source.file.sha256, source.file.reading.format};
}

}  // namespace

inputs::RunData load_run_data(const config::RunConfig& config, const text::Tokenizer& tokenizer,
                              const ModelShape& shape, sherd::World& world, const track::Say& say,
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
  if (const auto remark = inputs::length_remark("data.max_length", asked, context);
      !remark.empty()) {
    say(remark);
  }
  std::optional<text::PromptEncoder> encoder;
  on_all_ranks(world, [&] {
    encoder.emplace(inputs::prompt_encoder_of(
        config.data, tokenizer,
        {inputs::sample_length(asked, context), config.data.max_answer_tokens}));
  });
  const Reading reading{config, *encoder, world, say, progress};
  inputs::RunData found;
  FileReports reports(say);
  read_training(found, reading, sources, reports);
  found.rows = read_on_all_ranks(world, [&] {
    return rows_of(config, found.training, encoder->limits().max_length_tokens, say);
  });
  found.identity =
      identity_of(sources, tokenizer, static_cast<std::int64_t>(found.training.size()));
  for (std::size_t i = 0; i < sources.heldout.size(); ++i) {
    found.heldout.push_back(heldout_of(reading, sources.heldout[i],
                                       inputs::limit_of(config.data.eval[i], config.train),
                                       found.skipped, reports));
    append(found.skipped, found.heldout.back().dataset.skipped);
  }
  on_all_ranks(world, [&] { found.length = inputs::run_length(config, found.rows.size()); });
  return found;
}

}  // namespace llm::setup
