#pragma once
// The data that a run trains and evaluates on, and the number of steps that follows from it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/inputs/batch.h"
#include "llm/inputs/dataset.h"
#include "llm/inputs/rows.h"
#include "llm/inputs/source.h"
#include "llm/inputs/token_store.h"
#include "llm/text/tokenizer.h"

namespace llm::inputs {

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
  Dataset dataset;
  std::string sha256;
  config::DataFormat format = config::DataFormat::Squad;
};

/// A training file's share of the training samples, which follow one another.
struct TrainingPart {
  DatasetReport report;
  std::int64_t first = 0;    ///< of its samples
  std::int64_t samples = 0;  ///< of an epoch, as often as its weight says
  config::DataFormat format = config::DataFormat::Squad;
  std::string sha256 = {};  ///< of the file
  std::shared_ptr<const TokenStore> store = {};
};

/// What a run learns from. A digest is empty where a checkpoint is older than digests.
struct DataIdentity {
  std::string path;              ///< of the training file, for messages
  std::int64_t samples = 0;      ///< of the training data
  std::string sha256;            ///< of the training file
  std::string tokenizer_sha256;  ///< of tokenizer.json
};

struct RunData {
  Samples training;
  std::vector<TrainingPart> parts;
  Rows rows;  ///< of the training samples: what steps are counted in
  DataIdentity identity;
  std::vector<Heldout> heldout;
  std::vector<text::BadSample> skipped;  ///< of all files
  RunLength length;

  /// Whether training samples are conversations, whatever the formats of their files: the model
  /// then learns a chat template and its stop token, which RunNote::chat_template keeps.
  [[nodiscard]] bool learns_conversations() const;
};

/// A run's data, opened: what is looked at without a model.
struct OpenData {
  config::RunConfig config;  ///< with all choices made
  text::Tokenizer tokenizer;
  RunData data;
  BatchShape shape;
};

/// The configuration with the formats of its files chosen, as they were read.
[[nodiscard]] config::RunConfig with_formats(config::RunConfig config, const RunData& data);

/// A training file once more, whose records are asked for with inputs::records_at(). Not
/// collective. Throws sherd::Error as inputs::open_source(), and BadData for a file that has
/// changed since it was tokenized.
[[nodiscard]] Source source_of_part(const RunData& data, std::size_t part,
                                    const config::RunConfig& config);

}  // namespace llm::inputs
