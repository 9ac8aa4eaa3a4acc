#include "comm/reduce_buffers.h"

#include <algorithm>
#include <cmath>

#include <c10/util/Exception.h>

#include "kernels/shard_math.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

int64_t largest_block_bytes(const std::vector<SegmentSpec>& segments, int world_size) {
  int64_t bytes = 0;
  for (const SegmentSpec& spec : segments) {
    if (spec.trainable && !spec.is_root) {
      bytes = std::max(bytes, segment_bytes(spec, world_size));
    }
  }
  return bytes;
}

int64_t largest_block_numel(const std::vector<SegmentSpec>& segments) {
  int64_t numel = 0;
  for (const SegmentSpec& spec : segments) {
    numel = std::max(numel, spec.trainable && !spec.is_root ? spec.shard_numel : 0);
  }
  return numel;
}

ReduceBuffers::ReduceBuffers(const std::vector<SegmentSpec>& segments, int world_size,
                             MemoryKind kind, std::shared_ptr<MemoryLedger> ledger,
                             c10::Device device)
    : kind_(kind), ledger_(std::move(ledger)), device_(device) {
  const int64_t block_bytes = largest_block_bytes(segments, world_size);
  for (const SegmentSpec& spec : segments) {
    bytes_.push_back(spec.is_root ? segment_bytes(spec, world_size) : block_bytes);
  }
}

void* ReduceBuffers::acquire(Communicator::Segment segment) {
  const int64_t wanted = bytes_[static_cast<size_t>(segment)];
  auto free = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return !slot.used && slot.buffer.bytes() == wanted;
  });
  if (free == slots_.end()) {
    slots_.push_back({Buffer(wanted, kind_, ledger_, device_), false});
    free = std::prev(slots_.end());
  }
  free->used = true;
  return free->buffer.data();
}

void ReduceBuffers::release(void* buffer) {
  auto held = std::find_if(slots_.begin(), slots_.end(),
                           [&](const Slot& s) { return s.buffer.data() == buffer; });
  TORCH_INTERNAL_ASSERT(held != slots_.end() && held->used,
                        "a reduce buffer is released that is not held");
  held->used = false;
}

void ReduceBuffers::release_all() {
  for (Slot& slot : slots_) {
    slot.used = false;
  }
}

double join(double a, double b, ReduceOp op) {
  if (op == ReduceOp::Sum) {
    return a + b;
  }
  return b > a || std::isnan(b) ? b : a;
}

void sum_piece(const Communicator::Reduction& target, c10::ScalarType dtype,
               const std::vector<const void*>& sources, int64_t first, int64_t numel,
               c10::Device device) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(sources.size());
  for (const void* source : sources) {
    tensors.push_back(flat_tensor(const_cast<void*>(source), numel, dtype, device));
  }
  const auto begin = first * static_cast<int64_t>(c10::elementSize(target.dtype));
  const at::Tensor shard =
      flat_tensor(static_cast<char*>(target.shard) + begin, numel, target.dtype, device);
  const double squares =
      shard_math::sum_in_rank_order(shard, target.accumulate, target.scale, tensors);
  if (target.squares != nullptr) {
    *target.squares = (first == 0 ? 0.0 : *target.squares) + squares;
  }
}

}  // namespace sherd::detail
