#include "llm/inputs/data_preview.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "llm/inputs/preview_text.h"
#include "llm/inputs/sample_records.h"
#include "llm/inputs/sampler.h"
#include "sherd/error.h"

namespace llm::inputs {

namespace {

using Indices = std::vector<std::int64_t>;

Sampler sampler_of(const RunData& data, const config::TrainSection& train) {
  return {data.length.rows, train.global_batch, static_cast<std::uint64_t>(train.seed)};
}

struct SamplePlace {
  std::int64_t sample = 0;
  std::int64_t step = 0;
};

// The first of an epoch.
std::vector<SamplePlace> first_places(const RunData& data, const config::TrainSection& train,
                                      std::int64_t count) {
  Sampler sampler = sampler_of(data, train);
  std::vector<SamplePlace> places;
  for (std::int64_t step = 0; step < data.length.steps_per_epoch; ++step) {
    for (const std::int64_t sample : data.rows.samples_of(sampler.batch(step))) {
      if (std::ssize(places) == count) {
        return places;
      }
      places.push_back({sample, step + 1});
    }
  }
  return places;
}

// Text that grows with the ids: what a token adds may depend on those before it.
std::vector<TextPart> parts_of_document(const Sample& sample, const text::Tokenizer& tokenizer) {
  std::vector<TextPart> parts;
  std::string before;
  for (std::size_t begin = 0; begin < sample.ids.size();) {
    const auto same = [&](std::uint8_t mark) { return mark == sample.supervised[begin]; };
    const auto end = static_cast<std::size_t>(
        std::find_if_not(sample.supervised.begin() + static_cast<std::ptrdiff_t>(begin),
                         sample.supervised.end(), same) -
        sample.supervised.begin());
    const std::string so_far = tokenizer.decode(sample.ids.first(end), false);
    const bool grows = so_far.starts_with(before);
    parts.push_back({grows ? so_far.substr(before.size())
                           : tokenizer.decode(sample.ids.subspan(begin, end - begin), false),
                     sample.supervised[begin] == 1});
    before = so_far;
    begin = end;
  }
  return parts;
}

// Of a pair, those of its chosen and then of its rejected text.
std::vector<TextPart> parts_of(const Sample& sample, const text::Tokenizer& tokenizer) {
  std::vector<TextPart> parts;
  for (const Sample& document : documents_of(sample)) {
    std::vector<TextPart> some = parts_of_document(document, tokenizer);
    some.front().begins_rejected = !parts.empty();
    std::move(some.begin(), some.end(), std::back_inserter(parts));
  }
  return parts;
}

PreviewedSample shown(const RunData& data, const SamplePlace& place,
                      const text::Tokenizer& tokenizer) {
  const Sample sample = data.training[static_cast<std::size_t>(place.sample)];
  return {.step = place.step,
          .tokens = static_cast<std::int64_t>(sample.ids.size()),
          .supervised_tokens = sample.supervised_tokens(),
          .parts = parts_of(sample, tokenizer),
          .cut = sample.cut};
}

// Tokens that a micro-batch has, and those it would have if it were padded.
std::pair<std::int64_t, std::int64_t> padded(const Samples& samples, const Indices& batch) {
  std::int64_t tokens = 0;
  std::int64_t longest = 0;
  for (const std::int64_t index : batch) {
    const std::int64_t length = samples.length(static_cast<std::size_t>(index));
    tokens += length;
    longest = std::max(longest, length);
  }
  return {tokens, longest * std::ssize(batch)};
}

double share_of_padding(const RunData& data, const config::TrainSection& train,
                        const BatchShape& shape) {
  Sampler sampler = sampler_of(data, train);
  std::int64_t tokens = 0;
  std::int64_t places = 0;
  for (std::int64_t step = 0; step < data.length.steps_per_epoch; ++step) {
    const Indices rows = sampler.batch(step);
    const std::int64_t count = shape.micro_batches(static_cast<std::int64_t>(rows.size()));
    for (std::int64_t micro = 0; micro < count; ++micro) {
      for (std::int64_t rank = 0; rank < shape.world; ++rank) {
        const auto [has, would_have] =
            padded(data.training, data.rows.samples_of(shape.samples_of(rows, micro, rank)));
        tokens += has;
        places += would_have;
      }
    }
  }
  return places == 0 ? 0 : 1 - static_cast<double>(tokens) / static_cast<double>(places);
}

// By digests of 64 bits. Memory: 8 bytes per sample.
std::int64_t duplicates_of(const Samples& samples) {
  const auto digest = [](const auto& values) {
    return std::hash<std::string_view>()(
        {reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]});
  };
  std::vector<std::size_t> digests;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Sample sample = samples[i];
    digests.push_back(digest(sample.ids) ^ (digest(sample.supervised) * 31));
  }
  std::sort(digests.begin(), digests.end());
  return std::distance(std::unique(digests.begin(), digests.end()), digests.end());
}

}  // namespace

DataFigures data_figures(const RunData& data, const config::RunConfig& config,
                         const BatchShape& shape) {
  std::vector<std::int64_t> lengths;
  DataFigures figures;
  for (std::size_t i = 0; i < data.training.size(); ++i) {
    lengths.push_back(data.training.length(i));
    figures.tokens += lengths.back();
    const std::int64_t supervised = data.training.supervised(i);
    figures.supervised_tokens += supervised;
    figures.unsupervised_samples += supervised == 0 ? 1 : 0;
  }
  std::sort(lengths.begin(), lengths.end());
  const auto at = [&](std::size_t percent) {
    return lengths[(lengths.size() * percent + 99) / 100 - 1];  // so many percent are within it
  };
  figures.samples = std::ssize(lengths);
  figures.shortest = lengths.front();
  figures.median = at(50);
  figures.percentile_95 = at(95);
  figures.longest = lengths.back();
  figures.lengths = length_histogram(lengths);
  figures.micro_batch = shape.micro_batch;
  figures.padding_if_padded = share_of_padding(data, config.train, shape);
  return figures;
}

DataPreview preview_of(const OpenData& run, std::int64_t count) {
  DataPreview preview{run.data.parts,
                      run.data.skipped,
                      data_figures(run.data, run.config, run.shape),
                      {},
                      duplicates_of(run.data.training)};
  const std::vector<SamplePlace> places = first_places(run.data, run.config.train, count);
  Indices samples;
  for (const SamplePlace& place : places) {
    samples.push_back(place.sample);
  }
  const SampleRecords records(run, samples);
  for (const SamplePlace& place : places) {
    preview.samples.push_back(shown(run.data, place, run.tokenizer));
    records.complete(preview.samples.back(), place.sample);
  }
  return preview;
}

std::vector<DealtSample> samples_of_step(const OpenData& run, std::int64_t step,
                                         std::int64_t ranks) {
  const RunData& data = run.data;
  if (step < 1 || step > data.length.total_steps) {
    throw sherd::Error(sherd::ExitCode::Usage, fmt::format("--step {}: the run has steps 1 to {}",
                                                           step, data.length.total_steps));
  }
  BatchShape shape = run.shape;
  shape.world = ranks;
  shape.validate();
  Sampler sampler = sampler_of(data, run.config.train);
  const Indices rows = sampler.batch(step - 1);
  const std::int64_t micro_batches = shape.micro_batches(std::ssize(rows));
  const SampleRecords records(run, data.rows.samples_of(rows));
  std::vector<DealtSample> dealt;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
      for (const std::int64_t sample : data.rows.samples_of(shape.samples_of(rows, micro, rank))) {
        dealt.push_back({rank, micro, shown(data, {sample, step}, run.tokenizer)});
        records.complete(dealt.back().sample, sample);
      }
    }
  }
  return dealt;
}

namespace {

constexpr std::size_t kClipped = 60;  // characters of a part's begin, and of its end

// Not within a character.
std::size_t whole(const std::string& text, std::size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80U) {
    ++at;
  }
  return at;
}

std::string clipped(const std::string& text) {
  if (text.size() <= 2 * kClipped) {
    return text;
  }
  return text.substr(0, whole(text, kClipped)) + " … " +
         text.substr(whole(text, text.size() - kClipped));
}

}  // namespace

std::string example_lines(const OpenData& run) {
  constexpr std::int64_t kExamples = 3;
  std::string lines = figures_line(data_figures(run.data, run.config, run.shape)) +
                      "\nfirst samples (supervised text in [[ ]]):";
  for (const SamplePlace& place : first_places(run.data, run.config.train, kExamples)) {
    PreviewedSample sample = shown(run.data, place, run.tokenizer);
    for (TextPart& part : sample.parts) {
      part.text = clipped(part.text);
    }
    lines += "\n  " + one_line(sample);
  }
  return lines;
}

}  // namespace llm::inputs
