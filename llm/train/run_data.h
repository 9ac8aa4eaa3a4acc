#pragma once
// The data that a run trains and evaluates on, and the number of steps that follows from it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/data/dataset.h"
#include "llm/data/rows.h"
#include "llm/text/tokenizer.h"
#include "llm/track/progress.h"
#include "llm/train/load_model.h"
#include "llm/train/run_note.h"
#include "sherd/world.h"

namespace llm::train {

using Say = std::function<void(const std::string& line)>;

/// The steps of a run.
struct RunLength {
  std::int64_t rows = 0;  ///< of an epoch: samples, or what they are packed into
  std::int64_t steps_per_epoch = 0;
  std::int64_t total_steps = 0;
};

/// Throws sherd::Error(Usage) where the warm-up is longer than the run.
[[nodiscard]] RunLength run_length(const config::RunConfig& config, std::int64_t rows);

/// The most tokens of a sample: what was asked for, but no more than the model was made for; the
/// model's context where 0 was asked for.
[[nodiscard]] std::int64_t sample_length(std::int64_t asked, std::int64_t context);
/// Empty, or a line for people: that `key` asks for more than the context.
[[nodiscard]] std::string length_remark(const std::string& key, std::int64_t asked,
                                        std::int64_t context);

/// A file that is evaluated.
struct Heldout {
  data::Dataset dataset;
  std::string sha256;
  config::DataFormat format = config::DataFormat::Squad;
};

/// A training file's share of the training samples, which follow one another.
struct TrainingPart {
  data::DatasetReport report;
  std::int64_t first = 0;    ///< of its samples
  std::int64_t samples = 0;  ///< of an epoch, as often as its weight says
  config::DataFormat format = config::DataFormat::Squad;
  std::string sha256 = {};  ///< of the file
};

struct RunData {
  data::Samples training;
  std::vector<TrainingPart> parts;
  data::Rows rows;  ///< of the training samples: what steps are counted in
  DataIdentity identity;
  std::vector<Heldout> heldout;
  std::vector<text::BadSample> skipped;  ///< of all files
  RunLength length;

  /// Whether training samples are conversations, whatever the formats of their files: the model
  /// then learns a chat template and its stop token, which RunNote::chat_template keeps.
  [[nodiscard]] bool learns_conversations() const;
};

/// The configuration with the formats of its files chosen, as they were read.
[[nodiscard]] config::RunConfig with_formats(config::RunConfig config, const RunData& data);

/// Reads all data files, compares their content and the model_identity() over the ranks, and
/// tokenizes. Collective. Throws the same sherd::Error on every rank: InputMissing, BadData,
/// RanksDisagree, Usage.
/// `say` is called on rank 0 alone; `progress`, null on other ranks, counts what is tokenized.
[[nodiscard]] RunData load_run_data(const config::RunConfig& config,
                                    const text::Tokenizer& tokenizer, const ModelShape& shape,
                                    sherd::World& world, const Say& say,
                                    track::Progress* progress = nullptr);

/// The questions of a training file that have samples, read once more. Not collective. Throws
/// sherd::Error as data::read_data_file() and data::questions_of() do, and BadData for a file that
/// has changed since it was tokenized.
[[nodiscard]] text::QuestionFile questions_of_part(const RunData& data, std::size_t part,
                                                   const config::RunConfig& config,
                                                   const text::Tokenizer& tokenizer);

}  // namespace llm::train
