#pragma once
// Ranks that each have a device of their own, over a process group that moves device memory (NCCL).

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "communicators/c10d.h"

namespace sherd::detail {

/// Gathers and reductions run on streams of high priority beside the compute stream, which is the
/// current one of the calling thread. [Note: Streams and memory]
/// - A gather begins when all that was computed before it was asked for has been done: the slot it
///   writes into is free then, and the shard it reads is written. wait_gather() makes the compute
///   stream wait, never the host.
/// - A reduction is an all-to-all in the dtype that travels and a sum in rank order, both on the
///   reduce stream. Its buffers are lent again only after the compute stream waits for its end.
/// All buffers are the communicator's own, so nothing is recorded on streams and no memory waits
/// for an event that nobody looks at.
class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(ProcessGroups groups, c10::Device device);

  [[nodiscard]] int rank() const override { return groups_.gather->getRank(); }
  [[nodiscard]] int world_size() const override { return groups_.gather->getSize(); }
  void attach(std::vector<SegmentSpec> segments, c10::Device device,
              std::shared_ptr<MemoryLedger> ledger) override;
  [[nodiscard]] void* travelling_shard(Segment segment) override;
  void begin_update(Segment /*segment*/) override {}
  void publish(Segment /*segment*/) override {}
  [[nodiscard]] bool gathers_in_place() const override { return false; }
  void* gather(Segment segment, void* slot) override;
  void wait_gather(Segment segment) override;
  void release(Segment /*segment*/) override {}
  [[nodiscard]] void* acquire_reduce_buffer(Segment segment, const Reduction& target) override;
  void release_reduce_buffer(Segment segment) override;
  void reduce(Segment segment, const Reduction& target) override;
  [[nodiscard]] int reductions_in_flight() const override {
    return static_cast<int>(pending_.size());
  }
  void finish_reductions() override;
  void abandon() override;
  [[nodiscard]] int64_t most_received_bytes() const override;
  void all_reduce(std::span<double> values, ReduceOp op) override;
  void barrier() override;

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  struct Pending {
    void* acquired;  ///< null where the gradients are the engine's own
    Buffer received;
    c10::Event summed;
  };
  void follow_compute(const c10::Stream& stream) const;
  [[nodiscard]] Buffer receive_buffer(int64_t bytes);
  void finish_oldest();

  ProcessGroups groups_;
  c10::Device device_;
  c10::Stream gather_stream_;
  c10::Stream reduce_stream_;
  std::vector<SegmentSpec> segments_;
  std::vector<Buffer> shards_;
  std::map<Segment, Work> gathers_;
  std::map<Segment, void*> acquired_;
  std::unique_ptr<ReduceBuffers> buffers_;
  std::vector<Buffer> receive_buffers_;  ///< free ones
  std::shared_ptr<MemoryLedger> ledger_;
  std::deque<Pending> pending_;
  History history_;
};

}  // namespace sherd::detail
