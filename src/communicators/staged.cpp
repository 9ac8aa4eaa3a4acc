#include "communicators/staged.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "movable_storage.h"

namespace sherd::detail {

namespace {

constexpr auto kHost = c10::DeviceType::CPU;

}  // namespace

void StagedCommunicator::attach(std::vector<SegmentSpec> segments, c10::Device device,
                                std::shared_ptr<MemoryLedger> ledger) {
  device_ = device;
  segments_ = segments;
  const auto on_host = std::make_shared<MemoryLedger>();
  for (const SegmentSpec& spec : segments_) {
    shards_.emplace_back(segment_bytes(spec, 1), spec.shard_kind, ledger, device);
    const int64_t bytes = host_->gathers_in_place() ? 0 : segment_bytes(spec, world_size());
    gathered_.emplace_back(bytes, MemoryKind::Gathered, on_host);
  }
  gathered_at_.assign(segments_.size(), nullptr);
  slots_.assign(segments_.size(), nullptr);
  acquired_.assign(segments_.size(), nullptr);
  buffers_ = std::make_unique<ReduceBuffers>(segments_, world_size(), MemoryKind::ReduceBuffer,
                                             std::move(ledger), device);
  host_->attach(std::move(segments), kHost, on_host);
}

void* StagedCommunicator::travelling_shard(Segment segment) {
  return shards_[static_cast<size_t>(segment)].data();
}

void StagedCommunicator::publish(Segment segment) {
  const auto index = static_cast<size_t>(segment);
  const int64_t bytes = segment_bytes(segments_[index], 1);
  flat_tensor(host_->travelling_shard(segment), bytes, at::kByte, kHost)
      .copy_(flat_tensor(shards_[index].data(), bytes, at::kByte, device_));
  host_->publish(segment);
}

void* StagedCommunicator::gather(Segment segment, void* slot) {
  ++counts_.gathers;
  const auto index = static_cast<size_t>(segment);
  slots_[index] = slot;
  counts_.bytes_sent += segment_bytes(segments_[index], 1) * (world_size() - 1);
  gathered_at_[index] = host_->gather(segment, gathered_[index].data());
  return slot;
}

void StagedCommunicator::wait_gather(Segment segment) {
  host_->wait_gather(segment);
  const auto index = static_cast<size_t>(segment);
  const int64_t bytes = segment_bytes(segments_[index], world_size());
  flat_tensor(slots_[index], bytes, at::kByte, device_)
      .copy_(flat_tensor(gathered_at_[index], bytes, at::kByte, kHost));
}

void* StagedCommunicator::acquire_reduce_buffer(Segment segment, const Reduction& /*target*/) {
  return acquired_[static_cast<size_t>(segment)] = buffers_->acquire(segment);
}

void StagedCommunicator::release_reduce_buffer(Segment segment) {
  buffers_->release(std::exchange(acquired_[static_cast<size_t>(segment)], nullptr));
}

void StagedCommunicator::reduce(Segment segment, const Reduction& target) {
  ++counts_.reductions;
  const auto index = static_cast<size_t>(segment);
  const SegmentSpec& spec = segments_[index];
  counts_.bytes_sent += reduced_bytes(spec, target) * (world_size() - 1);
  const int64_t numel = spec.shard_numel * world_size();
  const auto dtype = reduced_dtype(spec, target);
  void* acquired = target.source == nullptr ? std::exchange(acquired_[index], nullptr) : nullptr;
  void* gradients = acquired != nullptr ? acquired : const_cast<float*>(target.source);
  const at::Tensor on_device = flat_tensor(gradients, numel, dtype, device_);
  // What the device holds is added to on the host, in the same order as everywhere.
  at::Tensor shard = flat_tensor(target.shard, spec.shard_numel, at::kFloat, device_);
  at::Tensor sum = target.accumulate ? at::empty({spec.shard_numel}, at::kFloat).copy_(shard)
                                     : at::empty({spec.shard_numel}, at::kFloat);
  Reduction on_host{sum.mutable_data_ptr<float>(), target.accumulate, target.scale};
  at::Tensor staged;
  if (acquired != nullptr) {
    void* buffer = host_->acquire_reduce_buffer(segment, on_host);
    flat_tensor(buffer, numel, dtype, kHost).copy_(on_device);
    buffers_->release(acquired);
  } else {
    staged = on_device.cpu();
    on_host.source = staged.const_data_ptr<float>();
  }
  host_->reduce(segment, on_host);
  host_->finish_reductions();
  shard.copy_(sum);
}

void StagedCommunicator::abandon() {
  host_->abandon();
  acquired_.assign(segments_.size(), nullptr);
  buffers_->release_all();
}

void StagedCommunicator::all_reduce(std::span<double> values, ReduceOp op) {
  ++counts_.all_reduces;
  host_->all_reduce(values, op);
}

}  // namespace sherd::detail
