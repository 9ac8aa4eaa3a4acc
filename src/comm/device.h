#pragma once
// Ranks that compute on devices: over a process group that moves device memory (NCCL), or by way of
// the host.

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "comm/c10d.h"
#include "storage/device.h"

namespace sherd::detail {

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
  ~DeviceCommunicator() override;

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
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override;
  [[nodiscard]] bool takes_pieces_in_slots() const override { return true; }
  void finish_gather(Segment segment) override;
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override {
    return std::make_unique<Summed>(on_.type());
  }
  void start_exchange(Exchange& exchange) override;
  void finish_exchange(Exchange& exchange) override;
  [[nodiscard]] int64_t receive_bytes(const SegmentSpec& spec,
                                      c10::ScalarType dtype) const override {
    return plan(spec, dtype).receive_bytes;
  }
  [[nodiscard]] c10::ScalarType sent_dtype(const SegmentSpec& spec,
                                           c10::ScalarType dtype) const override {
    return plan(spec, dtype).sent;
  }
  void gather_numbers(std::span<const double> mine, std::span<double> all) override;
  [[nodiscard]] at::Tensor gather_on_device(const at::Tensor& mine) override;
  void interrupt(const std::string& why) override;
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
  [[nodiscard]] std::vector<const void*> all_parts(const Summed& mine, Part part) const;
  [[nodiscard]] std::vector<const void*> sum_of_parts(const Summed& mine, c10::ScalarType born,
                                                      Part part) const;
  void shut_down() const;
  void order_gather(const GatherEvents& after) const;
  void follow_compute(const c10::Stream& stream) const {
    reached_by_current_stream(on_).value().block(stream);
  }
  void compute_follows(const c10::Stream& stream) const;
  // The work of a capture that has ended is not in flight.
  [[nodiscard]] bool can_be_awaited(std::uint64_t capture) const {
    return capture == capture_of(on_);
  }
  void await_compute() const;
  void check_groups() const;

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
  void share_memory() override;
  void* start_gather(Segment segment, void* slot, const GatherEvents& /*after*/) override {
    Staged& mine = gathers_[static_cast<size_t>(segment)];
    mine.at_host = host_->gather(segment, mine.on_host.data(), {});
    return mine.slot = slot;
  }
  void finish_gather(Segment segment) override;
  void finish_reading(Segment segment) override { host_->release(segment); }
  void await_readers(Segment segment) override { host_->begin_update(segment); }
  void show_published(Segment segment) override;
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override {
    return std::make_unique<OnHost>();
  }
  void start_exchange(Exchange& exchange) override;
  void finish_exchange(Exchange& exchange) override;
  void gather_numbers(std::span<const double> mine, std::span<double> all) override;
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

}  // namespace sherd::detail
