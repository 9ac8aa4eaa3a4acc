#pragma once
// The first samples of a run as the model sees them, and what all of them are like.

#include <cstdint>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/data/batch.h"
#include "llm/text/tokenizer.h"
#include "llm/train/length_histogram.h"
#include "llm/train/run_data.h"
#include "llm/train/start.h"

namespace llm::train {

/// A piece of a sample's text.
struct TextPart {
  std::string text;
  bool supervised = false;
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
  data::SampleCut cut = {};
  std::string cut_text = {};  ///< taken off: a context's or conversation's end, a prompt's begin
  std::vector<PreviewedTurn> turns = {};  ///< of a conversation
  std::int64_t number = 1;                ///< of the samples of its conversation, from 1
  Unrolling unrolling = {};
};

/// Of the conversations of a training file that have samples.
struct ConversationFigures {
  std::int64_t conversations = 0;
  std::int64_t unrolled = 0;              ///< those that make several samples
  std::int64_t rewritten = 0, apart = 0;  ///< of these: why; see Unrolling
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

  [[nodiscard]] double supervised_share() const;
};

struct DataPreview {
  std::vector<TrainingPart> parts;
  std::vector<text::BadSample> skipped;
  DataFigures figures;
  std::vector<PreviewedSample> samples;  ///< in the order of training
  std::int64_t duplicates = 0;           ///< samples that are equal to another before them
  std::vector<ConversationFigures> conversations = {};  ///< per part
};

[[nodiscard]] DataFigures data_figures(const RunData& data, const config::RunConfig& config,
                                       const data::BatchShape& shape);

/// With the first `count` samples. Reads their files once more, for what was cut off. Not
/// collective. Throws sherd::Error as data::read_data_file() and data::questions_of() do.
[[nodiscard]] DataPreview preview_of(const RunInputs& run, std::int64_t count);

/// A sample as a rank gets it in a step.
struct DealtSample {
  std::int64_t rank = 0;
  std::int64_t micro_batch = 0;  ///< of the step's, from 0
  PreviewedSample sample = {};
};

/// What `ranks` ranks get in `step` (from 1), rank after rank: by the order of training alone. Not
/// collective. Throws as preview_of(), and sherd::Error(Usage) for a step that the run does not
/// have.
[[nodiscard]] std::vector<DealtSample> samples_of_step(const RunInputs& run, std::int64_t step,
                                                       std::int64_t ranks);

/// "lengths: 12 to 40 tokens, median 20, 95 % within 31; 12.5 % supervised; no padding (…)";
/// without the last part where no micro-batch could be padded.
[[nodiscard]] std::string figures_line(const DataFigures& figures);

/// What a run prints at its start: the figures, and three samples of a line each.
[[nodiscard]] std::string example_lines(const RunInputs& run);

/// How supervised text is marked on a terminal.
enum class Marks { Brackets, Colour };

/// Whether a long sample is shown without its middle.
enum class Clip { None, Middle };

/// For people, without a line end; the text of data can do nothing to a terminal. Lines have at
/// most 80 columns, except those of samples and names that are longer. With Clip::Middle at most
/// 2,000 characters of each part.
[[nodiscard]] std::string to_text(const DataPreview& preview, Marks marks, Clip clip = Clip::None);
[[nodiscard]] std::string to_text(const std::vector<DealtSample>& dealt, Marks marks);
/// One line, which can do nothing to a terminal either.
[[nodiscard]] std::string to_json(const DataPreview& preview);
[[nodiscard]] std::string to_json(const std::vector<DealtSample>& dealt);
/// A page that needs no other file. Clips as to_text().
[[nodiscard]] std::string to_html(const DataPreview& preview, Clip clip = Clip::None);

}  // namespace llm::train
