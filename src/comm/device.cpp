#include "comm/device.h"

#include <algorithm>
#include <thread>

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "storage/device.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

namespace {

constexpr auto kHost = c10::DeviceType::CPU;

}  // namespace

DeviceCommunicator::~DeviceCommunicator() {
  try {
    for (const auto& [segment, gathering] : gathers_) {
      if (can_be_awaited(gathering.capture)) {
        gathering.work->wait();
      }
    }
    compute_follows(reduce_stream_);
    if (!were_aborted_ && std::uncaught_exceptions() == exceptions_) {
      shut_down();
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the groups were ended
  }
}

// A group that is destroyed without shutdown aborts what it and its peers still exchange.
void DeviceCommunicator::shut_down() const {
  check_groups();
  reduce_stream_.synchronize();
  gather_stream_.synchronize();
  for (const auto& group : {groups_.gather, groups_.reduce}) {
    group->shutdown();
  }
}

void DeviceCommunicator::compute_follows(const c10::Stream& stream) const {
  c10::Event reached(on_.type());
  reached.record(stream);
  reached.block(c10::impl::VirtualGuardImpl(on_.type()).getStream(on_));
}

// After NCCL has failed, the compute stream never gets there, or with wrong values.
void DeviceCommunicator::await_compute() const {
  const c10::Event reached = reached_by_current_stream(on_).value();
  while (!reached.query()) {
    check_groups();
    std::this_thread::yield();
  }
  check_groups();
}

void DeviceCommunicator::check_groups() const {
  for (const auto& group : {groups_.gather, groups_.reduce}) {
    const c10d::ErrorType error = group->getError();
    TORCH_CHECK(error != c10d::ErrorType::TIMEOUT, "NCCL error: an operation has timed out");
    TORCH_CHECK(error == c10d::ErrorType::SUCCESS,
                "NCCL error: ", groups_.last_error ? groups_.last_error() : "");
  }
}

void DeviceCommunicator::order_gather(const GatherEvents& after) const {
  if (after.written == nullptr || after.slot_free == nullptr) {
    return follow_compute(gather_stream_);
  }
  after.written->block(gather_stream_);
  if (after.slot_free != after.written) {
    after.slot_free->block(gather_stream_);
  }
}

void* DeviceCommunicator::start_gather(Segment segment, void* slot, const GatherEvents& after) {
  const int64_t bytes = segment_bytes(spec(segment), 1);
  at::Tensor out = flat_tensor(slot, bytes * world_size(), at::kByte, on_);
  void* const mine = spec(segment).piece_in_slot ? static_cast<char*>(slot) + rank() * bytes
                                                 : travelling_shard(segment);
  at::Tensor in = flat_tensor(mine, bytes, at::kByte, on_);
  order_gather(after);
  const c10::StreamGuard guard(gather_stream_);
  gathers_[segment] = {exchange(groups_.notes, described(Collective::Operation::Gather, segment),
                                [&] { return groups_.gather->_allgather_base(out, in); }),
                       capture_of(gather_stream_)};
  return slot;
}

void DeviceCommunicator::finish_gather(Segment segment) {
  const auto node = gathers_.extract(segment);
  if (can_be_awaited(node.mapped().capture)) {
    exchange(groups_.notes, described(Collective::Operation::Gather, segment),
             [&] { return node.mapped().work->wait(); });
  }
}

void DeviceCommunicator::start_exchange(Exchange& filled) {
  auto& mine = static_cast<Summed&>(filled);
  const SegmentSpec& of = spec(mine.segment);
  const c10::ScalarType born = mine.dtype;
  const DeviceExchange planned = plan(of, born);
  const int64_t step = planned.part_numel;
  mine.dtype = planned.sent;
  follow_compute(reduce_stream_);
  const c10::StreamGuard guard(reduce_stream_);
  for (Part part; part.first < of.shard_numel; part.first += step) {
    part.numel = std::min(step, of.shard_numel - part.first);
    const std::vector<const void*> sources =
        exchange(groups_.notes, described(Collective::Operation::Reduction, mine.segment), [&] {
          return way_ == ReduceScatter::Native ? sum_of_parts(mine, born, part)
                                               : all_parts(mine, part);
        });
    add_piece(mine, sources, part.first, part.numel);
  }
  mine.summed.record(reduce_stream_);
  mine.capture = capture_of(reduce_stream_);
}

std::vector<const void*> DeviceCommunicator::all_parts(const Summed& mine, Part part) const {
  const int64_t shard = spec(mine.segment).shard_numel;
  const at::Tensor in = flat_tensor(mine.gradients, shard * world_size(), mine.dtype, on_);
  const at::Tensor out = flat_tensor(mine.received, part.numel * world_size(), mine.dtype, on_);
  if (part.numel == shard) {
    at::Tensor all = out;
    at::Tensor whole = in;
    std::vector<int64_t> equal_splits;
    groups_.reduce->alltoall_base(all, whole, equal_splits, equal_splits)->wait();
  }
  std::vector<at::Tensor> sent;
  std::vector<at::Tensor> received;
  std::vector<const void*> sources;
  for (int peer = 0; peer < world_size(); ++peer) {
    sent.push_back(in.narrow(0, peer * shard + part.first, part.numel));
    received.push_back(out.narrow(0, peer * part.numel, part.numel));
    sources.push_back(received.back().const_data_ptr());
  }
  if (part.numel < shard) {
    groups_.reduce->alltoall(received, sent)->wait();
  }
  return sources;
}

std::vector<const void*> DeviceCommunicator::sum_of_parts(const Summed& mine, c10::ScalarType born,
                                                          Part part) const {
  const int64_t shard = spec(mine.segment).shard_numel;
  at::Tensor in = flat_tensor(mine.gradients, shard * world_size(), born, on_);
  at::Tensor out;
  if (mine.dtype == born) {
    out = flat_tensor(mine.received, shard, born, on_);
  } else {
    at::Tensor wide = flat_tensor(mine.received, part.numel * world_size(), mine.dtype, on_);
    wide.view({world_size(), part.numel})
        .copy_(in.view({world_size(), shard}).narrow(1, part.first, part.numel));
    out = wide.narrow(0, rank() * part.numel, part.numel);  // in place, as NCCL takes it
    in = wide;
  }
  groups_.reduce->_reduce_scatter_base(out, in)->wait();
  return {out.const_data_ptr()};
}

void DeviceCommunicator::finish_exchange(Exchange& exchange) {
  const auto& mine = static_cast<Summed&>(exchange);
  if (can_be_awaited(mine.capture)) {
    mine.summed.block(c10::impl::VirtualGuardImpl(on_.type()).getStream(on_));
  }
}

void DeviceCommunicator::gather_numbers(std::span<const double> mine, std::span<double> all) {
  const auto count = static_cast<int64_t>(mine.size());
  at::Tensor in = flat_tensor(const_cast<double*>(mine.data()), count, at::kDouble, kHost).to(on_);
  at::Tensor out =
      at::empty({world_size() * count}, c10::TensorOptions().dtype(at::kDouble).device(on_));
  exchange(groups_.notes, "all-reduce", [&] {
    groups_.gather->_allgather_base(out, in)->wait();
    await_compute();
  });
  flat_tensor(all.data(), world_size() * count, at::kDouble, kHost).copy_(out);
}

at::Tensor DeviceCommunicator::gather_on_device(const at::Tensor& mine) {
  at::Tensor all = at::empty({world_size(), mine.numel()}, mine.options());
  at::Tensor in = mine;
  exchange(groups_.notes, "all-reduce", [&] {
    groups_.gather->_allgather_base(all, in)->wait();
    check_groups();
  });
  return all;
}

void DeviceCommunicator::interrupt(const std::string& /*why*/) {
  were_aborted_ = true;
  for (const auto& group : {groups_.gather, groups_.reduce}) {
    try {
      group->abort();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the other has to end too
    }
  }
}

void StagedCommunicator::share_memory() {
  const auto on_host = std::make_shared<MemoryLedger>();
  for (const SegmentSpec& spec : segments()) {
    const int64_t bytes = host_->gathers_in_place() ? 0 : segment_bytes(spec, world_size());
    gathers_.push_back({Buffer(bytes, MemoryKind::Gathered, on_host)});
  }
  host_->attach(segments(), kHost, on_host);
}

void StagedCommunicator::show_published(Segment segment) {
  const int64_t bytes = segment_bytes(spec(segment), 1);
  flat_tensor(host_->travelling_shard(segment), bytes, at::kByte, kHost)
      .copy_(flat_tensor(travelling_shard(segment), bytes, at::kByte, device()));
  host_->publish(segment);
}

void StagedCommunicator::finish_gather(Segment segment) {
  host_->wait_gather(segment);
  const Staged& mine = gathers_[static_cast<size_t>(segment)];
  const int64_t bytes = segment_bytes(spec(segment), world_size());
  flat_tensor(mine.slot, bytes, at::kByte, device())
      .copy_(flat_tensor(mine.at_host, bytes, at::kByte, kHost));
}

void StagedCommunicator::start_exchange(Exchange& exchange) {
  auto& mine = static_cast<OnHost&>(exchange);
  const int64_t shard_numel = spec(mine.segment).shard_numel;
  const int64_t numel = shard_numel * world_size();
  const Reduction& target = mine.target;
  const at::Tensor on_device = flat_tensor(exchange.gradients, numel, mine.dtype, device());
  // Accumulates on the host, in the same order as everywhere.
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

// The host's communicator reduces in rank order too: each rank's numbers have their own places.
void StagedCommunicator::gather_numbers(std::span<const double> mine, std::span<double> all) {
  std::fill(all.begin(), all.end(), 0.0);
  std::copy(mine.begin(), mine.end(),
            all.begin() + rank() * static_cast<std::ptrdiff_t>(mine.size()));
  host_->all_reduce(all, ReduceOp::Sum);
}

}  // namespace sherd::detail
