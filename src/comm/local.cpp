#include "comm/local.h"

#include <algorithm>

#include "kernels/shard_math.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

void* LocalCommunicator::start_gather(Segment segment, void* slot, const GatherEvents& /*after*/) {
  return slot == nullptr ? travelling_shard(segment) : slot;
}

void* LocalCommunicator::place_of_sum(Segment segment, const Reduction& target) {
  const bool in_place = spec(segment).dtype == target.dtype && !target.accumulate;
  return in_place ? target.shard : nullptr;
}

void LocalCommunicator::start_exchange(Exchange& exchange) {
  const int64_t numel = spec(exchange.segment).shard_numel;
  const Reduction& target = exchange.target;
  if (exchange.gradients != target.shard) {
    add_piece(exchange, {exchange.gradients}, 0, numel);
  } else if (target.scale != 1.0F) {
    shard_math::scale_in_place(flat_tensor(target.shard, numel, target.dtype, device()),
                               target.scale);
  }
  exchange.has_ended = true;
}

void LocalCommunicator::gather_numbers(std::span<const double> mine, std::span<double> all) {
  std::copy(mine.begin(), mine.end(), all.begin());
}

}  // namespace sherd::detail
