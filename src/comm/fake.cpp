#include "comm/fake.h"

#include <algorithm>

#include "comm/reduce_buffers.h"

namespace sherd::detail {

void* FakeCommunicator::start_gather(Segment segment, void* slot, const GatherEvents& /*after*/) {
  if (like_ == Like::Hosts) {
    const int64_t bytes = segment_bytes(spec(segment), hosts_ - 1);
    received_.erase(segment);
    received_.emplace(segment, LedgerEntry(bytes, MemoryKind::Gathered, ledger()));
  }
  return slot == nullptr ? travelling_shard(segment) : slot;
}

// LocalCommunicator's sums are there at once.
void FakeCommunicator::start_exchange(Exchange& exchange) {
  exchange.has_ended = like_ == Like::Alone;
}

int64_t FakeCommunicator::receive_bytes(const SegmentSpec& spec, c10::ScalarType dtype) const {
  switch (like_) {
    case Like::Alone:
    case Like::SharedMemory:
      return 0;
    case Like::Hosts:
    case Like::ProcessGroups:
      return others_parts_bytes(spec, dtype, block_piece_bytes(), world_size());
    case Like::Nccl:
      return device_receive_bytes(spec, dtype, world_size(), largest_block_numel(segments()), way_);
  }
  return 0;
}

c10::ScalarType FakeCommunicator::sent_dtype(const SegmentSpec& spec, c10::ScalarType dtype) const {
  return like_ == Like::Nccl ? device_sent_dtype(spec, dtype, way_) : dtype;
}

void* FakeCommunicator::place_of_sum(Segment segment, const Reduction& target) {
  const bool in_place =
      like_ == Like::Alone && spec(segment).dtype == target.dtype && !target.accumulate;
  return in_place ? target.shard : nullptr;
}

void FakeCommunicator::gather_numbers(std::span<const double> mine, std::span<double> all) {
  for (size_t begin = 0; begin < all.size(); begin += mine.size()) {
    std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

}  // namespace sherd::detail
