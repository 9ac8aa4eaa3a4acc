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

/// Returns the samples of a data file, or of the questions that `limit` leaves, and what was
/// skipped. They come from the cache. If they are not there, rank 0 encodes them and keeps them; on
/// hosts that do not see what it kept, the first rank does the same, and after it each rank that
/// still finds nothing. A rank that encodes reports its progress, so that the others do not take it
/// for hanging. Collective. `say` hears, on rank 0, why nothing could be kept; `progress`, null on
/// other ranks, what is encoded. Throws sherd::Error as `data::load_dataset` does, on every rank.
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
