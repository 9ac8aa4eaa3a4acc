#pragma once
// A world of one: gathering, publishing and reducing move nothing.

#include <memory>
#include <vector>

#include "communicators/reduce_buffers.h"

namespace sherd::detail {

/// The travelling shard is the whole segment and is where it is gathered. fp32 gradients are born
/// in the gradient shard itself where nothing is to be added to; else they pass through one buffer.
class LocalCommunicator final : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 1; }
  void attach(std::vector<SegmentSpec> segments, c10::Device device,
              std::shared_ptr<MemoryLedger> ledger) override;
  [[nodiscard]] void* travelling_shard(Segment segment) override;
  void begin_update(Segment /*segment*/) override {}
  void publish(Segment /*segment*/) override {}
  [[nodiscard]] bool gathers_in_place() const override { return true; }
  void* gather(Segment segment, void* slot) override;
  void wait_gather(Segment /*segment*/) override {}
  void release(Segment /*segment*/) override {}
  [[nodiscard]] void* acquire_reduce_buffer(Segment segment, const Reduction& target) override;
  void release_reduce_buffer(Segment segment) override;
  void reduce(Segment segment, const Reduction& target) override;
  [[nodiscard]] int reductions_in_flight() const override { return 0; }
  void finish_reductions() override {}
  void abandon() override;
  void all_reduce(std::span<double> /*values*/, ReduceOp /*op*/) override {}
  void barrier() override {}

 private:
  std::vector<SegmentSpec> segments_;
  std::vector<Buffer> shards_;
  std::vector<void*> in_use_;  // by segment: its reduce buffer, the gradient shard itself, or null
  std::unique_ptr<ReduceBuffers> buffers_;
};

}  // namespace sherd::detail
