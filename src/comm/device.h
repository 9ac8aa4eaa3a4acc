#pragma once
// Ranks that each have a device of their own, over a process group that moves device memory (NCCL).

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "comm/c10d.h"

namespace sherd::detail {

/// Gathers and reductions run on streams of high priority beside the compute stream, which is the
/// current one of the calling thread. [Note: Streams and memory]
/// - A gather begins when the shard it reads has been written and the slot it writes into is free:
///   at the events that gather() was given, so that the first units of a step are gathered while
///   others are still updated; without events, after all earlier work of the compute stream.
///   wait_gather() makes the compute stream wait, never the host. A piece in the slot
///   (SegmentSpec::piece_in_slot) is where NCCL's gathers in place want it.
/// - A reduction is an all-to-all in the dtype that travels and a sum in rank order, both on the
///   reduce stream; or, ReduceScatter::Native, the group's own reduce-scatter there. Its buffers
///   are lent again only after the compute stream waits for its end. Segments larger than the
///   largest block are exchanged and summed in parts of that size, one after the other, which
///   changes no bit: no more than two blocks' gradients are received at a time.
/// All buffers are the communicator's own, so no `record_stream` is needed and no memory is held
/// until an event is polled.
class DeviceCommunicator final : public BufferedCommunicator {
 public:
  DeviceCommunicator(ProcessGroups groups, c10::Device device,
                     ReduceScatter way = ReduceScatter::RankOrder);
  /// What computes on the compute stream from then on finds its memory unused. Shuts its groups
  /// down, which all ranks do, when all has been exchanged; or aborts them, after cancel(), an
  /// exchange that failed, and while an exception passes, when others may never come here.
  ~DeviceCommunicator() override;

  [[nodiscard]] int rank() const override { return groups_.gather->getRank(); }
  [[nodiscard]] int world_size() const override { return groups_.gather->getSize(); }
  [[nodiscard]] std::string transport() const override;
  [[nodiscard]] bool gathers_in_place() const override { return false; }
  void check_exchanges(const std::function<void()>& wait) const override;
  void begin_capture() override;
  void end_capture() override;
  [[nodiscard]] bool gathers_on_own_stream() const override { return true; }

 private:
  struct Gathering {
    c10::intrusive_ptr<c10d::Work> work;
    std::uint64_t capture;  ///< that it is part of; 0: it is done at once
  };
  struct Summed : Exchange {
    explicit Summed(c10::DeviceType type) : summed(type) {}
    c10::Event summed;
    std::uint64_t capture = 0;
  };
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override;
  [[nodiscard]] bool takes_pieces_in_slots() const override { return true; }
  void finish_gather(Segment segment) override;
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override;
  void start_exchange(Exchange& exchange) override;
  void finish_exchange(Exchange& exchange) override;
  [[nodiscard]] int64_t receive_bytes(const SegmentSpec& spec,
                                      c10::ScalarType dtype) const override;
  [[nodiscard]] c10::ScalarType sent_dtype(const SegmentSpec& spec,
                                           c10::ScalarType dtype) const override;
  void gather_numbers(std::span<const double> mine, std::span<double> all) override;
  [[nodiscard]] at::Tensor gather_on_device(const at::Tensor& mine) override;
  void interrupt(const std::string& why) override;
  [[nodiscard]] int rank_of_world(int member) const override {
    return groups_.roster.group().rank_at(member);
  }
  /// A range of each rank's shard.
  struct Part {
    int64_t first = 0;
    int64_t numel = 0;
  };
  /// Exchanges a part on the current stream and returns, by rank, every rank's part, or their sum
  /// alone. `born`: dtype of the gradients in this rank's buffer.
  [[nodiscard]] std::vector<const void*> all_parts(const Summed& mine, Part part) const;
  [[nodiscard]] std::vector<const void*> sum_of_parts(const Summed& mine, c10::ScalarType born,
                                                      Part part) const;
  void shut_down() const;
  void order_gather(const GatherEvents& after) const;
  void follow_compute(const c10::Stream& stream) const;
  void compute_follows(const c10::Stream& stream) const;
  [[nodiscard]] bool can_be_awaited(std::uint64_t capture) const;
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

}  // namespace sherd::detail
