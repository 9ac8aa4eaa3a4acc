#pragma once
// What a preview shows of samples, and of all of them.

#include <cstdint>
#include <string>
#include <vector>

#include "llm/inputs/length_histogram.h"
#include "llm/inputs/run_data.h"

namespace llm::inputs {

/// A piece of a sample's text.
struct TextPart {
  std::string text;
  bool supervised = false;
  bool begins_rejected = false;  ///< the first part of a pair's rejected text
};

/// A message of a sample's conversation.
struct PreviewedTurn {
  std::string role;
  std::string text;      ///< what it says; without a text the tools that it calls
  bool learned = false;  ///< in this sample
};

/// How many samples a conversation makes, and why there are several.
struct Unrolling {
  std::int64_t samples = 1;
  bool rewrites = false;  ///< the template writes earlier turns differently later on
  bool apart = false;     ///< a prompt alone has other token ids than in the whole text
  bool operator==(const Unrolling&) const = default;
};

struct PreviewedSample {
  std::string source = {};  ///< its file
  std::string id = {};      ///< of the question, or its line or record
  std::int64_t step = 0;    ///< in which it is seen first, from 1
  std::int64_t tokens = 0;
  std::int64_t supervised_tokens = 0;
  std::vector<TextPart> parts = {};
  SampleCut cut = {};
  std::string cut_text = {};  ///< taken off: a context's or conversation's end, a prompt's begin
  std::vector<PreviewedTurn> turns = {};  ///< of a conversation
  std::int64_t number = 1;                ///< of the samples of its conversation, from 1
  Unrolling unrolling = {};
};

/// Of the first epoch's samples.
struct DataFigures {
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::int64_t supervised_tokens = 0;
  std::int64_t shortest = 0, median = 0, percentile_95 = 0, longest = 0;  ///< tokens
  std::vector<LengthBin> lengths = {};
  std::int64_t unsupervised_samples = 0;  ///< without a supervised token: they teach nothing
  std::int64_t micro_batch = 0;
  /// The share of padding that micro-batches would have if each sample were as long as the longest
  /// beside it. They have none.
  double padding_if_padded = 0;

  [[nodiscard]] double supervised_share() const {
    return tokens == 0 ? 0 : static_cast<double>(supervised_tokens) / static_cast<double>(tokens);
  }
};

struct DataPreview {
  std::vector<TrainingPart> parts;
  std::vector<text::BadSample> skipped;
  DataFigures figures;
  std::vector<PreviewedSample> samples;  ///< in the order of training
  std::int64_t duplicates = 0;           ///< samples that are equal to another before them
};

/// A sample as a rank gets it in a step.
struct DealtSample {
  std::int64_t rank = 0;
  std::int64_t micro_batch = 0;  ///< of the step's, from 0
  PreviewedSample sample = {};
};

}  // namespace llm::inputs
