#include "comm/local.h"

#include <algorithm>

#include "kernels/shard_math.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

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
  for (size_t begin = 0; begin < all.size(); begin += mine.size()) {
    std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

void* FakeCommunicator::start_gather(Segment segment, void* slot, const GatherEvents& after) {
  if (like_ == Like::Hosts) {
    const int64_t bytes = segment_bytes(spec(segment), hosts_ - 1);
    received_.erase(segment);
    received_.emplace(segment, enter(bytes, MemoryKind::Gathered, ledger()));
  }
  return LocalCommunicator::start_gather(segment, slot, after);
}

int64_t FakeCommunicator::receive_bytes(const SegmentSpec& spec, c10::ScalarType dtype) const {
  if (like_ == Like::Nccl) {
    return device_exchange(spec, dtype, segments(), world_size(), way_).receive_bytes;
  }
  return like_ == Like::Hosts || like_ == Like::ProcessGroups
             ? others_parts_bytes(spec, dtype, block_piece_bytes(), world_size())
             : 0;
}

}  // namespace sherd::detail
