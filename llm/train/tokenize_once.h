#pragma once
// A data file's tokens for all ranks: encoded by one of them, in one run.

#include <functional>
#include <string>
#include <vector>

#include "llm/data/dataset.h"
#include "llm/data/token_cache.h"
#include "llm/track/progress.h"
#include "sherd/world.h"

namespace llm::train {

/// A data file in tokens, and its samples that were left out.
struct TokenizedOnce {
  data::TokenizedFile tokens;
  std::vector<text::BadSample> skipped;
};

/// The samples of a data file, or of the questions that `limit` leaves, and what was skipped: from
/// the cache; else rank 0 encodes them, and the others map what it wrote, or encode for themselves
/// where they do not see it. Collective. `say` is told, on rank 0, why nothing could be kept;
/// `progress`, null on other ranks, what is encoded. Throws sherd::Error as `data::load_dataset`
/// does, on every rank.
TokenizedOnce tokenize_once(sherd::World& world, const data::TokenCache& cache,
                            const data::DataFile& file, const text::PromptEncoder& encoder,
                            const data::Limit& limit,
                            const std::function<void(const std::string& line)>& say,
                            track::Progress* progress);

/// The same with the questions that have samples, for evaluation. Collective.
data::Dataset load_dataset_once(sherd::World& world, const data::TokenCache& cache,
                                const data::DataFile& file, const text::PromptEncoder& encoder,
                                const data::Limit& limit,
                                const std::function<void(const std::string& line)>& say,
                                track::Progress* progress);

}  // namespace llm::train
