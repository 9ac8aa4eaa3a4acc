// Ranks that compute on devices: over a process group that moves device memory (NCCL), or by way of
// the host.

#include "storage/device.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/communicators.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

namespace {

constexpr auto kHost = c10::DeviceType::CPU;

/// Ranks that each have a device of their own. [Note: Streams and memory] Gathers and reductions
/// run on side streams of high priority; the compute stream is the calling thread's current one.
/// - A gather begins at the events that gather() receives, so that the first units of a step are
///   gathered while others are still updated; without events, after all earlier work of the compute
///   stream. wait_gather() makes the compute stream wait, never the host. A shard in the slot
///   (SegmentSpec::piece_in_slot) lies where NCCL's gathers in place expect it.
/// - A reduction is an all-to-all in the dtype on the wire and a sum in rank order, both on the
///   reduce stream; or, with ReduceScatter::Native, the group's own reduce-scatter there. Its
///   buffers are reused only after the compute stream waits for its end. Segments larger than the
///   largest block are exchanged and summed in parts of that size, which changes no bit.
/// All buffers are the communicator's own, so no `record_stream` is needed.
class DeviceCommunicator final : public BufferedCommunicator {
 public:
  DeviceCommunicator(ProcessGroups groups, c10::Device device,
                     ReduceScatter way = ReduceScatter::RankOrder)
      : groups_(std::move(groups)),
        on_(device),
        way_(way),
        gather_stream_(side_stream(device, StreamPriority::High)),
        reduce_stream_(side_stream(device, StreamPriority::High)) {}
  /// Makes the compute stream wait for the last exchanges. Shuts the groups down (collective) after
  /// a clean run; aborts them after cancel(), after a failed exchange, or during unwinding.
  ~DeviceCommunicator() override {
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

  [[nodiscard]] int rank() const override { return groups_.gather->getRank(); }
  [[nodiscard]] int world_size() const override { return groups_.gather->getSize(); }
  [[nodiscard]] std::string transport() const override {
    return groups_.carrier + (way_ == ReduceScatter::Native ? ", gradients by its reduce-scatter"
                                                            : ", gradients in rank order");
  }
  [[nodiscard]] bool gathers_in_place() const override { return false; }
  void check_exchanges(const std::function<void()>& wait) const override {
    exchange(groups_.notes, "exchange between ranks", [&] {
      wait();
      check_groups();
    });
  }
  void begin_capture() override {
    follow_compute(gather_stream_);
    follow_compute(reduce_stream_);
  }
  void end_capture() override {
    compute_follows(gather_stream_);
    compute_follows(reduce_stream_);
  }
  [[nodiscard]] bool gathers_on_own_stream() const override { return true; }

 private:
  struct Gathering {
    c10::intrusive_ptr<c10d::Work> work;
    std::uint64_t capture;  ///< the capture that it is part of; 0 for none
  };
  struct Summed : Exchange {
    explicit Summed(c10::DeviceType type) : summed(type) {}
    c10::Event summed;
    std::uint64_t capture = 0;
  };
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override {
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
  [[nodiscard]] bool takes_pieces_in_slots() const override { return true; }
  void finish_gather(Segment segment) override {
    const auto node = gathers_.extract(segment);
    if (can_be_awaited(node.mapped().capture)) {
      exchange(groups_.notes, described(Collective::Operation::Gather, segment),
               [&] { return node.mapped().work->wait(); });
    }
  }
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override {
    return std::make_unique<Summed>(on_.type());
  }
  void start_exchange(Exchange& filled) override {
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
  void finish_exchange(Exchange& exchange) override {
    const auto& mine = static_cast<Summed&>(exchange);
    if (can_be_awaited(mine.capture)) {
      mine.summed.block(c10::impl::VirtualGuardImpl(on_.type()).getStream(on_));
    }
  }
  [[nodiscard]] int64_t receive_bytes(const SegmentSpec& spec,
                                      c10::ScalarType dtype) const override {
    return plan(spec, dtype).receive_bytes;
  }
  [[nodiscard]] c10::ScalarType sent_dtype(const SegmentSpec& spec,
                                           c10::ScalarType dtype) const override {
    return plan(spec, dtype).sent;
  }
  void gather_numbers(std::span<const double> mine, std::span<double> all) override {
    const auto count = static_cast<int64_t>(mine.size());
    at::Tensor in =
        flat_tensor(const_cast<double*>(mine.data()), count, at::kDouble, kHost).to(on_);
    at::Tensor out =
        at::empty({world_size() * count}, c10::TensorOptions().dtype(at::kDouble).device(on_));
    exchange(groups_.notes, "all-reduce", [&] {
      groups_.gather->_allgather_base(out, in)->wait();
      await_compute();
    });
    flat_tensor(all.data(), world_size() * count, at::kDouble, kHost).copy_(out);
  }
  [[nodiscard]] at::Tensor gather_on_device(const at::Tensor& mine) override {
    at::Tensor all = at::empty({world_size(), mine.numel()}, mine.options());
    at::Tensor in = mine;
    exchange(groups_.notes, "all-reduce", [&] {
      groups_.gather->_allgather_base(all, in)->wait();
      check_groups();
    });
    return all;
  }
  void interrupt(const std::string& /*why*/) override {
    were_aborted_ = true;
    for (const auto& group : {groups_.gather, groups_.reduce}) {
      try {
        group->abort();
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the other has to end too
      }
    }
  }
  [[nodiscard]] int rank_of_world(int member) const override {
    return groups_.notes.group.rank_at(member);
  }
  /// A range of each rank's shard.
  struct Part {
    int64_t first = 0;
    int64_t numel = 0;
  };
  [[nodiscard]] DeviceExchange plan(const SegmentSpec& spec, c10::ScalarType dtype) const {
    return device_exchange(spec, dtype, segments(), world_size(), way_);
  }
  /// Exchanges a part on the current stream. Returns every rank's part, or their sum alone.
  /// `born`: dtype of the gradients in this rank's buffer.
  [[nodiscard]] std::vector<const void*> all_parts(const Summed& mine, Part part) const {
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
  [[nodiscard]] std::vector<const void*> sum_of_parts(const Summed& mine, c10::ScalarType born,
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
  // A group that is destroyed without shutdown aborts what it and its peers still exchange.
  void shut_down() const {
    check_groups();
    reduce_stream_.synchronize();
    gather_stream_.synchronize();
    for (const auto& group : {groups_.gather, groups_.reduce}) {
      group->shutdown();
    }
  }
  void order_gather(const GatherEvents& after) const {
    if (after.written == nullptr || after.slot_free == nullptr) {
      return follow_compute(gather_stream_);
    }
    after.written->block(gather_stream_);
    if (after.slot_free != after.written) {
      after.slot_free->block(gather_stream_);
    }
  }
  void follow_compute(const c10::Stream& stream) const {
    reached_by_current_stream(on_).value().block(stream);
  }
  void compute_follows(const c10::Stream& stream) const {
    c10::Event reached(on_.type());
    reached.record(stream);
    reached.block(c10::impl::VirtualGuardImpl(on_.type()).getStream(on_));
  }
  // The work of a capture that has ended is not in flight.
  [[nodiscard]] bool can_be_awaited(std::uint64_t capture) const {
    return capture == capture_of(on_);
  }
  // After NCCL has failed, the compute stream never gets there, or with wrong values.
  void await_compute() const {
    const c10::Event reached = reached_by_current_stream(on_).value();
    while (!reached.query()) {
      check_groups();
      std::this_thread::yield();
    }
    check_groups();
  }
  void check_groups() const {
    for (const auto& group : {groups_.gather, groups_.reduce}) {
      const c10d::ErrorType error = group->getError();
      TORCH_CHECK(error != c10d::ErrorType::TIMEOUT, "NCCL error: an operation has timed out");
      TORCH_CHECK(error == c10d::ErrorType::SUCCESS,
                  "NCCL error: ", groups_.last_error ? groups_.last_error() : "");
    }
  }

  ProcessGroups groups_;
  c10::Device on_;  ///< also before attach()
  ReduceScatter way_;
  c10::Stream gather_stream_;
  c10::Stream reduce_stream_;
  std::map<Segment, Gathering> gathers_;
  std::atomic<bool> were_aborted_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

/// Ranks that share a device, for tests, or whose devices cannot reach each other. Copies
/// everything through a communicator of the host; nothing overlaps.
class StagedCommunicator final : public BufferedCommunicator {
 public:
  /// `why`: why the devices do not exchange directly.
  explicit StagedCommunicator(std::unique_ptr<Communicator> host, std::string why = "")
      : host_(std::move(host)), why_(std::move(why)) {}

  [[nodiscard]] int rank() const override { return host_->rank(); }
  [[nodiscard]] int world_size() const override { return host_->world_size(); }
  [[nodiscard]] std::string transport() const override {
    return host_->transport() + " by way of the host" + (why_.empty() ? "" : ": " + why_);
  }
  [[nodiscard]] bool gathers_in_place() const override { return false; }

 private:
  struct OnHost : Exchange {
    at::Tensor sum;
    at::Tensor copied;  ///< gradients; undefined if they lie in the host's buffer
  };
  void share_memory() override {
    const auto on_host = std::make_shared<MemoryLedger>();
    for (const SegmentSpec& spec : segments()) {
      const int64_t bytes = host_->gathers_in_place() ? 0 : segment_bytes(spec, world_size());
      gathers_.push_back({Buffer(bytes, MemoryKind::Gathered, on_host)});
    }
    host_->attach(segments(), kHost, on_host);
  }
  void* start_gather(Segment segment, void* slot, const GatherEvents& /*after*/) override {
    Staged& mine = gathers_[static_cast<size_t>(segment)];
    mine.at_host = host_->gather(segment, mine.on_host.data(), {});
    return mine.slot = slot;
  }
  void finish_gather(Segment segment) override {
    host_->wait_gather(segment);
    const Staged& mine = gathers_[static_cast<size_t>(segment)];
    const int64_t bytes = segment_bytes(spec(segment), world_size());
    flat_tensor(mine.slot, bytes, at::kByte, device())
        .copy_(flat_tensor(mine.at_host, bytes, at::kByte, kHost));
  }
  void finish_reading(Segment segment) override { host_->release(segment); }
  void await_readers(Segment segment) override { host_->begin_update(segment); }
  void show_published(Segment segment) override {
    const int64_t bytes = segment_bytes(spec(segment), 1);
    flat_tensor(host_->travelling_shard(segment), bytes, at::kByte, kHost)
        .copy_(flat_tensor(travelling_shard(segment), bytes, at::kByte, device()));
    host_->publish(segment);
  }
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override {
    return std::make_unique<OnHost>();
  }
  void start_exchange(Exchange& exchange) override {
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
  void finish_exchange(Exchange& exchange) override {
    host_->finish_reductions();
    const Reduction& target = exchange.target;
    flat_tensor(target.shard, spec(exchange.segment).shard_numel, target.dtype, device())
        .copy_(static_cast<OnHost&>(exchange).sum);
  }
  // The host's communicator reduces in rank order too: each rank's numbers have their own places.
  void gather_numbers(std::span<const double> mine, std::span<double> all) override {
    std::fill(all.begin(), all.end(), 0.0);
    std::copy(mine.begin(), mine.end(),
              all.begin() + rank() * static_cast<std::ptrdiff_t>(mine.size()));
    host_->all_reduce(all, ReduceOp::Sum);
  }
  void forget_exchanges() override { host_->abandon(); }
  void interrupt(const std::string& why) override { host_->cancel(why); }

  std::unique_ptr<Communicator> host_;
  std::string why_;
  /// A gather of a segment.
  struct Staged {
    Buffer on_host = {};      ///< empty if the host's communicator gathers in place
    void* at_host = nullptr;  ///< address there
    void* slot = nullptr;     ///< on the device
  };
  std::vector<Staged> gathers_;
};

}  // namespace

std::unique_ptr<Communicator> make_device_communicator(ProcessGroups groups, c10::Device device,
                                                       ReduceScatter way) {
  return std::make_unique<DeviceCommunicator>(std::move(groups), device, way);
}

std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host,
                                                       std::string why) {
  return std::make_unique<StagedCommunicator>(std::move(host), std::move(why));
}

}  // namespace sherd::detail
