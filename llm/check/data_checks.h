#pragma once
// What is checked of a run's data, before there is a model.

#include "llm/check/check_item.h"
#include "llm/config/run_config.h"
#include "llm/inputs/batch.h"
#include "llm/inputs/run_data.h"
#include "llm/text/tokenizer.h"
#include "sherd/world.h"

namespace llm::check {

/// The samples of the first epoch, as every rank deals them to itself: disjoint and complete. Rank
/// 0 counts; ranks exchange digests. Collective.
[[nodiscard]] CheckItem data_order(const inputs::RunData& data, const config::RunConfig& config,
                                   const inputs::BatchShape& shape, sherd::World& world);

/// What is supervised of some samples, decoded, is the answer in the file; each answer that is not
/// cut ends with a token that stops generation. Samples of conversations keep the rule of
/// chat_labels.h. Collective; rank 0 reads the files once more. Throws sherd::Error as
/// inputs::read_data_file() does.
[[nodiscard]] CheckItem labels(const inputs::RunData& data, const config::RunConfig& config,
                               const text::Tokenizer& tokenizer, sherd::World& world);

/// The share of the first epoch's tokens, in the micro-batches of all ranks, that belong to no
/// sample, and supervised ones that the token before them does not predict. Each rank counts its
/// own. Collective.
[[nodiscard]] CheckItem padding(const inputs::RunData& data, const config::RunConfig& config,
                                const inputs::BatchShape& shape, sherd::World& world);

}  // namespace llm::check
