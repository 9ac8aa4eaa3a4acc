#pragma once
// What a process takes before it has a model.

#include <cstdint>

#include "llm/io/hf_config.h"
#include "llm/setup/peak_memory.h"
#include "sherd/options.h"

namespace llm::plan {

/// resident_memory() of this process once libraries have loaded and compiled what they
/// do as they first run: trains a model of one narrow layer of the same family for a step, alone,
/// and forgets it. Takes some hundredths of a second. Not collective.
[[nodiscard]] setup::ResidentMemory program_memory(const io::HfConfig& like,
                                                   const sherd::ShardOptions& options,
                                                   int local_ranks);

}  // namespace llm::plan
