#pragma once
// The buffers that units' gradients are collected in, shared by the communicators.

#include <list>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/communicator.h"

namespace sherd::detail {

/// Two blocks' gradients at a time: one is being computed while the other is summed.
inline constexpr size_t kReductionsInFlight = 2;

[[nodiscard]] inline int64_t segment_bytes(const SegmentSpec& spec, int world_size) {
  return spec.shard_numel * world_size * static_cast<int64_t>(c10::elementSize(spec.dtype));
}

/// In which dtype a segment's gradients are reduced.
[[nodiscard]] inline c10::ScalarType reduced_dtype(const SegmentSpec& spec,
                                                   const Communicator::Reduction& target) {
  return target.source == nullptr ? spec.dtype : c10::ScalarType::Float;
}

/// Bytes of one rank's piece of them.
[[nodiscard]] inline int64_t reduced_bytes(const SegmentSpec& spec,
                                           const Communicator::Reduction& target) {
  return spec.shard_numel * static_cast<int64_t>(c10::elementSize(reduced_dtype(spec, target)));
}

/// Reduce buffers, reused: blocks share buffers of the largest block's size, a root segment has its
/// own.
class ReduceBuffers {
 public:
  ReduceBuffers(const std::vector<SegmentSpec>& segments, int world_size, MemoryKind kind,
                std::shared_ptr<MemoryLedger> ledger, c10::Device device);
  [[nodiscard]] void* acquire(Communicator::Segment segment);
  void release(void* buffer);
  void release_all();
  [[nodiscard]] c10::Device device() const { return device_; }
  /// Bytes of the largest block's gradients.
  [[nodiscard]] int64_t block_bytes() const { return block_bytes_; }

 private:
  struct Slot {
    Buffer buffer;
    bool used = false;
  };
  std::vector<int64_t> bytes_;  // by segment: of the buffer it uses
  int64_t block_bytes_ = 0;
  std::list<Slot> slots_;
  MemoryKind kind_;
  std::shared_ptr<MemoryLedger> ledger_;
  c10::Device device_;
};

/// Of two values; what is not a number stays so.
[[nodiscard]] double join(double a, double b, ReduceOp op);

/// values[i] = the sum or maximum of all[peer × size + i] over the peers, in rank order. `all`
/// holds doubles, on the host.
void reduce_in_rank_order(std::span<double> values, const at::Tensor& all, ReduceOp op);

/// What every communicator does with a piece: shard (+)= its part of every rank's gradients, from
/// `first` on. A shard's parts are summed in order.
void sum_piece(const Communicator::Reduction& target, c10::ScalarType dtype,
               const std::vector<const void*>& sources, int64_t first, int64_t numel,
               c10::Device device);

}  // namespace sherd::detail
