#include "comm/device.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/exchange.h"
#include "comm/reduce_buffers.h"
#include "storage/device_graph.h"
#include "storage/movable_storage.h"
#include "storage/streams.h"

namespace sherd::detail {

DeviceCommunicator::DeviceCommunicator(ProcessGroups groups, c10::Device device, ReduceScatter way)
    : groups_(std::move(groups)),
      on_(device),
      way_(way),
      gather_stream_(side_stream(device, StreamPriority::High)),
      reduce_stream_(side_stream(device, StreamPriority::High)) {}

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

// A group that is destroyed otherwise aborts what it and its peers still exchange.
void DeviceCommunicator::shut_down() const {
  check_groups();
  reduce_stream_.synchronize();
  gather_stream_.synchronize();
  for (const auto& group : {groups_.gather, groups_.reduce}) {
    group->shutdown();
  }
}

std::string DeviceCommunicator::transport() const {
  return groups_.carrier + (way_ == ReduceScatter::Native ? ", gradients by its reduce-scatter"
                                                          : ", gradients in rank order");
}

void DeviceCommunicator::follow_compute(const c10::Stream& stream) const {
  reached_by_current_stream(on_).value().block(stream);
}

void DeviceCommunicator::compute_follows(const c10::Stream& stream) const {
  c10::Event reached(on_.type());
  reached.record(stream);
  reached.block(c10::impl::VirtualGuardImpl(on_.type()).getStream(on_));
}

void DeviceCommunicator::begin_capture() {
  follow_compute(gather_stream_);
  follow_compute(reduce_stream_);
}

void DeviceCommunicator::end_capture() {
  compute_follows(gather_stream_);
  compute_follows(reduce_stream_);
}

// What a capture that has ended was to do is not under way.
bool DeviceCommunicator::can_be_awaited(std::uint64_t capture) const {
  return capture == capture_of(on_);
}

// Once NCCL has failed, what is waited for never comes, or comes and is wrong.
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
  gathers_[segment] = {exchange(groups_.roster, described(Collective::Operation::Gather, segment),
                                [&] { return groups_.gather->_allgather_base(out, in); }),
                       capture_of(gather_stream_)};
  return slot;
}

void DeviceCommunicator::finish_gather(Segment segment) {
  const auto node = gathers_.extract(segment);
  if (can_be_awaited(node.mapped().capture)) {
    exchange(groups_.roster, described(Collective::Operation::Gather, segment),
             [&] { return node.mapped().work->wait(); });
  }
}

int64_t DeviceCommunicator::receive_bytes(const SegmentSpec& spec, c10::ScalarType dtype) const {
  return device_receive_bytes(spec, dtype, world_size(), largest_block_numel(segments()), way_);
}

c10::ScalarType DeviceCommunicator::sent_dtype(const SegmentSpec& spec,
                                               c10::ScalarType dtype) const {
  return device_sent_dtype(spec, dtype, way_);
}

std::unique_ptr<BufferedCommunicator::Exchange> DeviceCommunicator::make_exchange() {
  return std::make_unique<Summed>(on_.type());
}

void DeviceCommunicator::start_exchange(Exchange& filled) {
  auto& mine = static_cast<Summed&>(filled);
  const SegmentSpec& of = spec(mine.segment);
  const c10::ScalarType born = mine.dtype;
  mine.dtype = sent_dtype(of, born);
  const int64_t step = device_part_numel(of, born, largest_block_numel(segments()), way_);
  follow_compute(reduce_stream_);
  const c10::StreamGuard guard(reduce_stream_);
  for (Part part; part.first < of.shard_numel; part.first += step) {
    part.numel = std::min(step, of.shard_numel - part.first);
    const std::vector<const void*> sources =
        exchange(groups_.roster, described(Collective::Operation::Reduction, mine.segment), [&] {
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
  const at::Tensor out =
      flat_tensor(mine.received.data(), part.numel * world_size(), mine.dtype, on_);
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
    out = flat_tensor(mine.received.data(), shard, born, on_);
  } else {
    at::Tensor wide = flat_tensor(mine.received.data(), part.numel * world_size(), mine.dtype, on_);
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
  const c10::Device host(c10::kCPU);
  at::Tensor in = flat_tensor(const_cast<double*>(mine.data()), count, at::kDouble, host).to(on_);
  at::Tensor out =
      at::empty({world_size() * count}, c10::TensorOptions().dtype(at::kDouble).device(on_));
  exchange(groups_.roster, "all-reduce", [&] {
    groups_.gather->_allgather_base(out, in)->wait();
    await_compute();
  });
  flat_tensor(all.data(), world_size() * count, at::kDouble, host).copy_(out);
}

at::Tensor DeviceCommunicator::gather_on_device(const at::Tensor& mine) {
  at::Tensor all = at::empty({world_size(), mine.numel()}, mine.options());
  at::Tensor in = mine;
  exchange(groups_.roster, "all-reduce", [&] {
    groups_.gather->_allgather_base(all, in)->wait();
    check_groups();
  });
  return all;
}

void DeviceCommunicator::check_exchanges(const std::function<void()>& wait) const {
  exchange(groups_.roster, "exchange between ranks", [&] {
    wait();
    check_groups();
  });
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

}  // namespace sherd::detail
