#pragma once
// Ranks whose memory is on a device and whose exchange is on the host: several ranks on one GPU,
// for tests, and GPUs without a library that reaches from one to the other.

#include <memory>
#include <vector>

#include "communicators/reduce_buffers.h"

namespace sherd::detail {

/// Passes everything through a communicator of the host: shards are copied to it before a gather
/// and gathered segments from it, gradients to it and sums from it. Nothing overlaps.
class StagedCommunicator final : public Communicator {
 public:
  explicit StagedCommunicator(std::unique_ptr<Communicator> host) : host_(std::move(host)) {}

  [[nodiscard]] int rank() const override { return host_->rank(); }
  [[nodiscard]] int world_size() const override { return host_->world_size(); }
  void attach(std::vector<SegmentSpec> segments, c10::Device device,
              std::shared_ptr<MemoryLedger> ledger) override;
  [[nodiscard]] void* travelling_shard(Segment segment) override;
  void begin_update(Segment segment) override { host_->begin_update(segment); }
  void publish(Segment segment) override;
  [[nodiscard]] bool gathers_in_place() const override { return false; }
  void* gather(Segment segment, void* slot) override;
  void wait_gather(Segment segment) override;
  void release(Segment segment) override { host_->release(segment); }
  [[nodiscard]] void* acquire_reduce_buffer(Segment segment, const Reduction& target) override;
  void release_reduce_buffer(Segment segment) override;
  void reduce(Segment segment, const Reduction& target) override;
  [[nodiscard]] int reductions_in_flight() const override { return 0; }
  void finish_reductions() override {}
  void abandon() override;
  void all_reduce(std::span<double> values, ReduceOp op) override;
  void barrier() override { host_->barrier(); }

 private:
  std::unique_ptr<Communicator> host_;
  c10::Device device_ = c10::Device(c10::kCPU);
  std::vector<SegmentSpec> segments_;
  std::vector<Buffer> shards_;
  std::vector<Buffer> gathered_;    ///< on the host; empty where it gathers in place
  std::vector<void*> gathered_at_;  ///< on the host
  std::vector<void*> slots_;
  std::vector<void*> acquired_;
  std::unique_ptr<ReduceBuffers> buffers_;
};

}  // namespace sherd::detail
