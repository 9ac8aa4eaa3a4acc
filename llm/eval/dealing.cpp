#include "llm/eval/dealing.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace llm::eval {

std::int64_t rounds_of(std::int64_t samples, std::int64_t batch, const sherd::World& world) {
  const std::int64_t per_round = batch * world.size();
  return (samples + per_round - 1) / per_round;
}

std::vector<std::int64_t> dealt(std::int64_t samples, std::int64_t batch, std::int64_t round,
                                const sherd::World& world) {
  const std::int64_t first = (round * world.size() + world.rank()) * batch;
  const std::int64_t last = std::min(samples, first + batch);
  std::vector<std::int64_t> indices(
      static_cast<std::size_t>(std::max<std::int64_t>(0, last - first)));
  std::iota(indices.begin(), indices.end(), first);
  return indices;
}

bool any_stop_requested(sherd::World& world, const std::function<bool()>& stop_requested) {
  double stops = stop_requested && stop_requested() ? 1 : 0;
  world.all_reduce({&stops, 1});
  return stops > 0;
}

}  // namespace llm::eval
