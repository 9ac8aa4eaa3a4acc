#pragma once
// Token stores of a run's data, made by whoever comes first.

#include <functional>
#include <string>

#include "llm/inputs/dataset.h"
#include "llm/inputs/prepare.h"
#include "llm/track/progress.h"
#include "sherd/world.h"

namespace llm::setup {

/// How a run prepares its data.
struct DataPreparation {
  std::filesystem::path folder = {};  ///< of stores; empty: none is kept
  std::int64_t memory_bytes = std::int64_t{1} << 30;
};

/// Prepares a source on every rank: ranks that share a folder wait for the one that makes the store
/// and report its progress, so that nobody takes them for hanging. Compares the digests of the
/// stores. Collective. `say` hears, on rank 0, why nothing could be kept; `progress` is null on
/// other ranks. Throws sherd::Error as inputs::prepare(), and RanksDisagree.
[[nodiscard]] inputs::Prepared prepare_on_ranks(
    sherd::World& world, const inputs::Source& source, const text::PromptEncoder& encoder,
    const DataPreparation& preparation, const inputs::Limit& limit, bool keeps_records,
    const std::function<void(const std::string& line)>& say, track::Progress* progress);

/// The same with the records, for evaluation. Collective.
[[nodiscard]] inputs::Dataset load_dataset_on_ranks(
    sherd::World& world, const inputs::Source& source, const text::PromptEncoder& encoder,
    const DataPreparation& preparation, const inputs::Limit& limit,
    const std::function<void(const std::string& line)>& say, track::Progress* progress);

}  // namespace llm::setup
