#include "communicators/reduce_buffers.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "kernels/kernels.h"

namespace sherd::detail {

ReduceBuffers::ReduceBuffers(const std::vector<SegmentSpec>& segments, int world_size,
                             MemoryKind kind, std::shared_ptr<MemoryLedger> ledger)
    : kind_(kind), ledger_(std::move(ledger)) {
  for (const SegmentSpec& spec : segments) {
    if (spec.trainable && !spec.is_root) {
      block_bytes_ = std::max(block_bytes_, segment_bytes(spec, world_size));
    }
  }
  for (const SegmentSpec& spec : segments) {
    bytes_.push_back(spec.is_root ? segment_bytes(spec, world_size) : block_bytes_);
  }
}

void* ReduceBuffers::acquire(Communicator::Segment segment) {
  const int64_t wanted = bytes_[static_cast<size_t>(segment)];
  auto free = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return !slot.used && slot.buffer.bytes() == wanted;
  });
  if (free == slots_.end()) {
    slots_.push_back({Buffer(wanted, kind_, ledger_), false});
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

namespace {

template <class T>
void sum_typed(const Communicator::Reduction& target, const std::vector<const void*>& sources,
               int64_t first, int64_t numel) {
  std::vector<const T*> typed;
  typed.reserve(sources.size());
  for (const void* source : sources) {
    typed.push_back(static_cast<const T*>(source));
  }
  kernels::sum_in_rank_order(target.shard + first, target.accumulate, target.scale, typed, numel);
}

}  // namespace

void sum_piece(const Communicator::Reduction& target, c10::ScalarType dtype,
               const std::vector<const void*>& sources, int64_t first, int64_t numel) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return sum_typed<float>(target, sources, first, numel);
    case c10::ScalarType::BFloat16:
      return sum_typed<uint16_t>(target, sources, first, numel);
    default:
      TORCH_INTERNAL_ASSERT(false, "gradients travel in fp32 or bf16, not in ", dtype);
  }
}

}  // namespace sherd::detail
