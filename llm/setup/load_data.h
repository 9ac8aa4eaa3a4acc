#pragma once
// A run's data, opened on all ranks.

#include "llm/config/run_config.h"
#include "llm/inputs/run_data.h"
#include "llm/setup/load_model.h"
#include "llm/text/tokenizer.h"
#include "llm/track/progress.h"
#include "sherd/world.h"

namespace llm::setup {

/// Reads all data files, compares their content and the model_identity() over the ranks, and
/// tokenizes. Collective. Throws the same sherd::Error on every rank: InputMissing, BadData,
/// RanksDisagree, Usage.
/// `say` is called on rank 0 alone; `progress`, null on other ranks, counts what is tokenized.
[[nodiscard]] inputs::RunData load_run_data(const config::RunConfig& config,
                                            const text::Tokenizer& tokenizer,
                                            const ModelShape& shape, sherd::World& world,
                                            const track::Say& say,
                                            track::Progress* progress = nullptr);

}  // namespace llm::setup
