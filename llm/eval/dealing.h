#pragma once
// How the samples of an evaluation are dealt over ranks.

#include <cstdint>
#include <functional>
#include <vector>

#include "sherd/world.h"

namespace llm::eval {

/// In how many rounds all ranks have computed all samples, each `batch` a round.
[[nodiscard]] std::int64_t rounds_of(std::int64_t samples, std::int64_t batch,
                                     const sherd::World& world);

/// This rank's samples of a round: batch after batch, rank after rank, in order. Perhaps none.
[[nodiscard]] std::vector<std::int64_t> dealt(std::int64_t samples, std::int64_t batch,
                                              std::int64_t round, const sherd::World& world);

/// True if any rank was asked to stop. Collective.
[[nodiscard]] bool any_stop_requested(sherd::World& world,
                                      const std::function<bool()>& stop_requested);

}  // namespace llm::eval
