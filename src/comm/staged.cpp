#include "comm/staged.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "comm/reduce_buffers.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

namespace {

constexpr auto kHost = c10::DeviceType::CPU;

}  // namespace

void StagedCommunicator::share_memory() {
  const auto on_host = std::make_shared<MemoryLedger>();
  for (const SegmentSpec& spec : segments()) {
    const int64_t bytes = host_->gathers_in_place() ? 0 : segment_bytes(spec, world_size());
    gathered_.emplace_back(bytes, MemoryKind::Gathered, on_host);
  }
  gathered_at_.assign(segments().size(), nullptr);
  slots_.assign(segments().size(), nullptr);
  host_->attach(segments(), kHost, on_host);
}

void StagedCommunicator::show_published(Segment segment) {
  const int64_t bytes = segment_bytes(spec(segment), 1);
  flat_tensor(host_->travelling_shard(segment), bytes, at::kByte, kHost)
      .copy_(flat_tensor(travelling_shard(segment), bytes, at::kByte, device()));
  host_->publish(segment);
}

void* StagedCommunicator::start_gather(Segment segment, void* slot, const GatherEvents& /*after*/) {
  const auto index = static_cast<size_t>(segment);
  gathered_at_[index] = host_->gather(segment, gathered_[index].data(), {});
  return slots_[index] = slot;
}

void StagedCommunicator::finish_gather(Segment segment) {
  host_->wait_gather(segment);
  const auto index = static_cast<size_t>(segment);
  const int64_t bytes = segment_bytes(spec(segment), world_size());
  flat_tensor(slots_[index], bytes, at::kByte, device())
      .copy_(flat_tensor(gathered_at_[index], bytes, at::kByte, kHost));
}

std::unique_ptr<BufferedCommunicator::Exchange> StagedCommunicator::make_exchange() {
  return std::make_unique<OnHost>();
}

void StagedCommunicator::start_exchange(Exchange& exchange) {
  auto& mine = static_cast<OnHost&>(exchange);
  const int64_t shard_numel = spec(mine.segment).shard_numel;
  const int64_t numel = shard_numel * world_size();
  const Reduction& target = mine.target;
  const at::Tensor on_device = flat_tensor(exchange.gradients, numel, mine.dtype, device());
  // What the device holds is added to on the host, in the same order as everywhere.
  mine.sum = at::empty({shard_numel}, target.dtype);
  if (target.accumulate) {
    mine.sum.copy_(flat_tensor(target.shard, shard_numel, target.dtype, device()));
  }
  Reduction on_host{.shard = mine.sum.mutable_data_ptr(),
                    .accumulate = target.accumulate,
                    .scale = target.scale,
                    .dtype = target.dtype};
  if (target.source == nullptr) {
    void* buffer = host_->acquire_reduce_buffer(mine.segment, on_host);
    flat_tensor(buffer, numel, mine.dtype, kHost).copy_(on_device);
  } else {
    mine.copied = on_device.cpu();
    on_host.source = mine.copied.const_data_ptr<float>();
  }
  host_->reduce(mine.segment, on_host);
  finish_exchange(mine);
  mine.has_ended = true;
}

void StagedCommunicator::finish_exchange(Exchange& exchange) {
  host_->finish_reductions();
  const Reduction& target = exchange.target;
  flat_tensor(target.shard, spec(exchange.segment).shard_numel, target.dtype, device())
      .copy_(static_cast<OnHost&>(exchange).sum);
}

// The host's communicator reduces in rank order too: each rank's numbers have places of their own.
void StagedCommunicator::gather_numbers(std::span<const double> mine, std::span<double> all) {
  std::fill(all.begin(), all.end(), 0.0);
  std::copy(mine.begin(), mine.end(),
            all.begin() + rank() * static_cast<std::ptrdiff_t>(mine.size()));
  host_->all_reduce(all, ReduceOp::Sum);
}

}  // namespace sherd::detail
