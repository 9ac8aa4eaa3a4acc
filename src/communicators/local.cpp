#include "communicators/local.h"

#include <utility>

#include "movable_storage.h"
#include "shard_math.h"

namespace sherd::detail {

void LocalCommunicator::attach(std::vector<SegmentSpec> segments, c10::Device device,
                               std::shared_ptr<MemoryLedger> ledger) {
  segments_ = std::move(segments);
  for (const SegmentSpec& spec : segments_) {
    shards_.emplace_back(segment_bytes(spec, 1), spec.shard_kind, ledger, device);
  }
  in_use_.assign(segments_.size(), nullptr);
  buffers_ = std::make_unique<ReduceBuffers>(segments_, 1, MemoryKind::ReduceBuffer,
                                             std::move(ledger), device);
}

void* LocalCommunicator::travelling_shard(Segment segment) {
  return shards_[static_cast<size_t>(segment)].data();
}

void* LocalCommunicator::gather(Segment segment, void* /*slot*/) {
  return travelling_shard(segment);
}

void* LocalCommunicator::acquire_reduce_buffer(Segment segment, const Reduction& target) {
  const auto index = static_cast<size_t>(segment);
  const bool in_place = segments_[index].dtype == c10::ScalarType::Float && !target.accumulate;
  return in_use_[index] = in_place ? target.shard : buffers_->acquire(segment);
}

void LocalCommunicator::release_reduce_buffer(Segment segment) {
  buffers_->release(std::exchange(in_use_[static_cast<size_t>(segment)], nullptr));
}

void LocalCommunicator::reduce(Segment segment, const Reduction& target) {
  const auto index = static_cast<size_t>(segment);
  const int64_t numel = segments_[index].shard_numel;
  if (target.source != nullptr) {
    return sum_piece(target, c10::ScalarType::Float, {target.source}, 0, numel, buffers_->device());
  }
  void* buffer = std::exchange(in_use_[index], nullptr);
  if (buffer != target.shard) {
    sum_piece(target, segments_[index].dtype, {buffer}, 0, numel, buffers_->device());
    buffers_->release(buffer);
  } else if (target.scale != 1.0F) {
    shard_math::scale_in_place(flat_tensor(target.shard, numel, c10::kFloat, buffers_->device()),
                               target.scale);
  }
}

void LocalCommunicator::abandon() {
  in_use_.assign(segments_.size(), nullptr);
  buffers_->release_all();
}

}  // namespace sherd::detail
