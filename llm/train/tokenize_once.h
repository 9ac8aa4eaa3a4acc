#pragma once
// A data file's tokens for all ranks: encoded by one of them, in one run.

#include <functional>
#include <string>

#include "llm/data/dataset.h"
#include "llm/data/token_cache.h"
#include "sherd/world.h"

namespace llm::train {

/// The samples of a data file, or of the first `limit` questions of it if that is not 0: from the
/// cache; else rank 0 encodes them, and the others map what it wrote, or encode for themselves
/// where they do not see it. Collective. `say` is told, on rank 0, that it will take a while, and
/// why nothing could be kept. Throws sherd::Error as `data::load_dataset` does, on every rank.
data::TokenizedFile tokenize_once(sherd::World& world, const data::TokenCache& cache,
                                  const data::DataFile& file, const text::PromptEncoder& encoder,
                                  std::int64_t limit,
                                  const std::function<void(const std::string& line)>& say);

}  // namespace llm::train
