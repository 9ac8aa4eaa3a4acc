#include "communicators/device.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "communicators/exchange.h"
#include "movable_storage.h"

namespace sherd::detail {

namespace {

c10::Stream high_priority_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(ProcessGroups groups, c10::Device device)
    : groups_(std::move(groups)),
      device_(device),
      gather_stream_(high_priority_stream(device)),
      reduce_stream_(high_priority_stream(device)) {}

void DeviceCommunicator::attach(std::vector<SegmentSpec> segments, c10::Device device,
                                std::shared_ptr<MemoryLedger> ledger) {
  segments_ = std::move(segments);
  ledger_ = ledger;
  for (const SegmentSpec& spec : segments_) {
    shards_.emplace_back(segment_bytes(spec, 1), spec.shard_kind, ledger, device);
  }
  buffers_ = std::make_unique<ReduceBuffers>(segments_, world_size(), MemoryKind::ReduceBuffer,
                                             std::move(ledger), device);
}

void* DeviceCommunicator::travelling_shard(Segment segment) {
  return shards_[static_cast<size_t>(segment)].data();
}

void DeviceCommunicator::follow_compute(const c10::Stream& stream) const {
  const c10::impl::VirtualGuardImpl guard(device_.type());
  c10::Event reached(device_.type());
  reached.record(guard.getStream(device_));
  reached.block(stream);
}

void* DeviceCommunicator::gather(Segment segment, void* slot) {
  ++counts_.gathers;
  const auto index = static_cast<size_t>(segment);
  const int64_t bytes = segment_bytes(segments_[index], 1);
  counts_.bytes_sent += bytes * (world_size() - 1);
  history_.add(History::Kind::Gather, segment, segments_[index].dtype);
  at::Tensor out = flat_tensor(slot, bytes * world_size(), at::kByte, device_);
  at::Tensor in = flat_tensor(shards_[index].data(), bytes, at::kByte, device_);
  follow_compute(gather_stream_);
  const c10::StreamGuard guard(gather_stream_);
  gathers_[segment] = exchange(groups_.roster, "all-gather of unit '" + segments_[index].name + "'",
                               [&] { return groups_.gather->_allgather_base(out, in); });
  return slot;
}

void DeviceCommunicator::wait_gather(Segment segment) {
  auto node = gathers_.extract(segment);
  const auto index = static_cast<size_t>(segment);
  if (!node.empty()) {
    exchange(groups_.roster, "all-gather of unit '" + segments_[index].name + "'",
             [&] { return node.mapped()->wait(); });
  }
}

void* DeviceCommunicator::acquire_reduce_buffer(Segment segment, const Reduction& /*target*/) {
  while (pending_.size() >= kReductionsInFlight) {
    finish_oldest();
  }
  return acquired_[segment] = buffers_->acquire(segment);
}

void DeviceCommunicator::release_reduce_buffer(Segment segment) {
  buffers_->release(acquired_.extract(segment).mapped());
}

Buffer DeviceCommunicator::receive_buffer(int64_t bytes) {
  const auto free = std::find_if(receive_buffers_.begin(), receive_buffers_.end(),
                                 [&](const Buffer& buffer) { return buffer.bytes() == bytes; });
  if (free == receive_buffers_.end()) {
    return {bytes, MemoryKind::ReceiveBuffer, ledger_, device_};
  }
  Buffer taken = std::move(*free);
  receive_buffers_.erase(free);
  return taken;
}

void DeviceCommunicator::reduce(Segment segment, const Reduction& target) {
  ++counts_.reductions;
  while (pending_.size() >= kReductionsInFlight) {
    finish_oldest();
  }
  const SegmentSpec& spec = segments_[static_cast<size_t>(segment)];
  const int64_t piece_bytes = reduced_bytes(spec, target);
  counts_.bytes_sent += piece_bytes * (world_size() - 1);
  history_.add(History::Kind::Reduction, segment, reduced_dtype(spec, target));
  Pending pending{nullptr, receive_buffer(piece_bytes * world_size()), c10::Event(device_.type())};
  void* gradients = const_cast<float*>(target.source);
  if (gradients == nullptr) {
    gradients = pending.acquired = acquired_.extract(segment).mapped();
  }
  follow_compute(reduce_stream_);
  {
    const c10::StreamGuard guard(reduce_stream_);
    at::Tensor in = flat_tensor(gradients, piece_bytes * world_size(), at::kByte, device_);
    at::Tensor out =
        flat_tensor(pending.received.data(), piece_bytes * world_size(), at::kByte, device_);
    std::vector<int64_t> equal_splits;
    exchange(groups_.roster, "exchange of gradients of unit '" + spec.name + "'", [&] {
      return groups_.reduce->alltoall_base(out, in, equal_splits, equal_splits)->wait();
    });
    std::vector<const void*> sources;
    for (int peer = 0; peer < world_size(); ++peer) {
      sources.push_back(static_cast<const char*>(pending.received.data()) + peer * piece_bytes);
    }
    sum_piece(target, reduced_dtype(spec, target), sources, 0, spec.shard_numel, device_);
    pending.summed.record(reduce_stream_);
  }
  pending_.push_back(std::move(pending));
}

void DeviceCommunicator::finish_oldest() {
  Pending& oldest = pending_.front();
  oldest.summed.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  if (oldest.acquired != nullptr) {
    buffers_->release(oldest.acquired);
  }
  receive_buffers_.push_back(std::move(oldest.received));
  pending_.pop_front();
}

void DeviceCommunicator::finish_reductions() {
  while (!pending_.empty()) {
    finish_oldest();
  }
}

void DeviceCommunicator::abandon() {
  finish_reductions();
  acquired_.clear();
  buffers_->release_all();
}

int64_t DeviceCommunicator::most_received_bytes() const {
  std::map<int64_t, size_t> buffers;  // by size; fp32 where micro-batches accumulated
  for (const SegmentSpec& spec : segments_) {
    if (spec.trainable) {
      ++buffers[spec.shard_numel * world_size() * 4];
    }
  }
  int64_t bytes = 0;
  for (const auto& [size, count] : buffers) {
    bytes += size * static_cast<int64_t>(std::min(kReductionsInFlight, count));
  }
  return bytes;
}

void DeviceCommunicator::all_reduce(std::span<double> values, ReduceOp op) {
  ++counts_.all_reduces;
  const auto options = c10::TensorOptions().dtype(at::kDouble).device(device_);
  at::Tensor mine = signed_values(values, history_).to(device_);
  at::Tensor all = at::empty({world_size() * mine.numel()}, options);
  exchange(groups_.roster, "all-reduce",
           [&] { return groups_.gather->_allgather_base(all, mine)->wait(); });
  reduce_signed_values(values, all.cpu(), op, rank());
}

void DeviceCommunicator::barrier() {
  double nothing = 0;
  all_reduce({&nothing, 1}, ReduceOp::Sum);
}

}  // namespace sherd::detail
