#pragma once
// The buffers that units' gradients are collected in, for all communicators.

#include <algorithm>
#include <list>
#include <vector>

#include "sherd/communicator.h"
#include "sherd/world.h"

namespace sherd::detail {

/// Two blocks' gradients at a time: one is being computed while the other is summed.
inline constexpr size_t kReductionsInFlight = 2;

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

/// Bytes of a segment in a dtype, the pieces of all ranks.
[[nodiscard]] inline int64_t all_pieces_bytes(const SegmentSpec& spec, c10::ScalarType dtype,
                                              int world_size) {
  return spec.shard_numel * world_size * static_cast<int64_t>(c10::elementSize(dtype));
}

[[nodiscard]] inline int64_t segment_bytes(const SegmentSpec& spec, int world_size) {
  return all_pieces_bytes(spec, spec.dtype, world_size);
}

/// What a rank receives where the other ranks' pieces come in parts of `part_bytes` each (0: in one
/// part).
[[nodiscard]] inline int64_t others_parts_bytes(const SegmentSpec& spec, c10::ScalarType dtype,
                                                int64_t part_bytes, int world_size) {
  const int64_t piece = spec.shard_numel * static_cast<int64_t>(c10::elementSize(dtype));
  return (part_bytes > 0 ? part_bytes : piece) * (world_size - 1);
}

/// In which dtype a collective that sums itself is given gradients: no sum is rounded further than
/// `reduce_dtype` says.
[[nodiscard]] inline c10::ScalarType summed_dtype(const SegmentSpec& spec, c10::ScalarType dtype) {
  return dtype == spec.reduce_dtype ? dtype : c10::ScalarType::Float;
}

/// In which dtype a device's gradients of `dtype` go to other ranks.
[[nodiscard]] inline c10::ScalarType device_sent_dtype(const SegmentSpec& spec,
                                                       c10::ScalarType dtype, ReduceScatter way) {
  return way == ReduceScatter::Native ? summed_dtype(spec, dtype) : dtype;
}

/// How many elements of each rank's shard a device exchanges at a time. A segment that is larger
/// than the largest block (`block_numel` elements per rank; 0: no blocks), such as a root with an
/// embedding, is exchanged in parts of that size. Not if the collective sums the shards itself and
/// reads them where they are: it then receives one shard alone.
[[nodiscard]] inline int64_t device_part_numel(const SegmentSpec& spec, c10::ScalarType dtype,
                                               int64_t block_numel, ReduceScatter way) {
  const bool all = way == ReduceScatter::RankOrder || device_sent_dtype(spec, dtype, way) != dtype;
  return all && block_numel > 0 ? std::min(spec.shard_numel, block_numel) : spec.shard_numel;
}

/// What a device receives into: one part of all ranks' shards, to be summed in rank order; or, for
/// a collective that sums, this rank's shard alone, or a part of all shards if they are first
/// copied into another dtype.
[[nodiscard]] inline int64_t device_receive_bytes(const SegmentSpec& spec, c10::ScalarType dtype,
                                                  int world_size, int64_t block_numel,
                                                  ReduceScatter way) {
  const c10::ScalarType sent = device_sent_dtype(spec, dtype, way);
  const bool all = way == ReduceScatter::RankOrder || sent != dtype;
  return device_part_numel(spec, dtype, block_numel, way) * (all ? world_size : 1) *
         static_cast<int64_t>(c10::elementSize(sent));
}

/// Elements of one rank's shard of the largest block that is trained; 0 if there are only roots.
[[nodiscard]] int64_t largest_block_numel(const std::vector<SegmentSpec>& segments);

/// Bytes of the largest block that is trained, of `world_size` pieces; 0 where there are only
/// roots.
[[nodiscard]] int64_t largest_block_bytes(const std::vector<SegmentSpec>& segments, int world_size);

/// Where gradients are collected before their reduction.
class ReduceBufferPool {
 public:
  ReduceBufferPool() = default;
  ReduceBufferPool(const ReduceBufferPool&) = delete;
  ReduceBufferPool& operator=(const ReduceBufferPool&) = delete;
  virtual ~ReduceBufferPool() = default;
  [[nodiscard]] virtual void* acquire(Communicator::Segment segment) = 0;
  virtual void release(void* buffer) = 0;
  virtual void release_all() = 0;
};

/// Reduce buffers, reused: blocks share buffers of the largest block's size, a root segment has its
/// own.
class ReduceBuffers final : public ReduceBufferPool {
 public:
  ReduceBuffers(const std::vector<SegmentSpec>& segments, int world_size, MemoryKind kind,
                std::shared_ptr<MemoryLedger> ledger, c10::Device device);
  [[nodiscard]] void* acquire(Communicator::Segment segment) override;
  void release(void* buffer) override;
  void release_all() override;

 private:
  struct Slot {
    Buffer buffer;
    bool used = false;
  };
  std::vector<int64_t> bytes_;  // by segment: of the buffer it uses
  std::list<Slot> slots_;
  MemoryKind kind_;
  std::shared_ptr<MemoryLedger> ledger_;
  c10::Device device_;
};

/// The sum or the maximum of two values; NaN if one of them is NaN.
[[nodiscard]] double join(double a, double b, ReduceOp op);

/// What every communicator does with a piece: shard (+)= its part of every rank's gradients, from
/// `first` on. A shard's parts are summed in order.
void sum_piece(const Communicator::Reduction& target, c10::ScalarType dtype,
               const std::vector<const void*>& sources, int64_t first, int64_t numel,
               c10::Device device);

}  // namespace sherd::detail
