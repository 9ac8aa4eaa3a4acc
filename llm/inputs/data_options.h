#pragma once
// From the configuration to how data is read, encoded and dealt.

#include <memory>
#include <string>

#include "llm/config/run_config.h"
#include "llm/inputs/batch.h"
#include "llm/inputs/data_file.h"
#include "llm/inputs/subset.h"
#include "llm/text/prompt.h"

namespace llm::inputs {

/// The questions of a data file that are used.
[[nodiscard]] Limit limit_of(const config::DataSet& set, const config::TrainSection& train);

/// How a file of `data` is read.
[[nodiscard]] FileReading reading_of(const config::DataSet& set, const config::DataSection& data);
/// The same of one to train on, without the samples that are kept from training.
[[nodiscard]] FileReading training_reading_of(const config::DataSet& set,
                                              const config::DataSection& data);

/// What encodes the samples of `data`, conversations by the chat template that it names, of which
/// the model is that of the tokenizer's folder; by the one that a run has learned where `recorded`,
/// RunNote::chat_template, is not empty. Throws sherd::Error as text::PromptEncoder, and for a
/// named template that cannot be read.
[[nodiscard]] text::PromptEncoder prompt_encoder_of(const config::DataSection& data,
                                                    const text::Tokenizer& tokenizer,
                                                    const text::PromptLimits& limits,
                                                    const std::string& recorded = "");

/// The text of the chat template by which the conversations of `data` are encoded. Throws
/// sherd::Error as prompt_encoder_of(), and BadData for a model without a chat template.
[[nodiscard]] std::string chat_template_text(const config::DataSection& data,
                                             const text::Tokenizer& tokenizer);
/// What a run has encoded its conversations with. `recorded` is RunNote::chat_template, not empty.
/// Throws sherd::Error for a template that cannot be read.
[[nodiscard]] std::shared_ptr<const text::ChatEncoder> learned_chat_of(
    const config::DataSection& data, const text::Tokenizer& tokenizer, const std::string& recorded);

/// How a step's samples are dealt; by one each where the micro-batch is still to be chosen. Throws
/// sherd::Error(Usage) if they do not divide.
[[nodiscard]] BatchShape batch_shape(const config::TrainSection& train, int world_size);

}  // namespace llm::inputs
