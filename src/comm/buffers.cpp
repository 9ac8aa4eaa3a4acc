#include "comm/buffers.h"

#include <algorithm>
#include <cmath>

#include <c10/util/Exception.h>

namespace sherd::detail {

namespace {

bool is_trained_block(const SegmentSpec& spec) {
  return spec.trainable && !spec.is_root;
}

}  // namespace

int64_t largest_block_bytes(const std::vector<SegmentSpec>& segments, int shards) {
  int64_t bytes = 0;
  for (const SegmentSpec& spec : segments) {
    bytes = std::max(bytes, is_trained_block(spec) ? segment_bytes(spec, shards) : 0);
  }
  return bytes;
}

int64_t others_parts_bytes(const SegmentSpec& spec, c10::ScalarType dtype, int64_t part_bytes,
                           int world_size) {
  const int64_t whole = spec.shard_numel * static_cast<int64_t>(c10::elementSize(dtype));
  return (part_bytes > 0 ? part_bytes : whole) * (world_size - 1);
}

DeviceExchange device_exchange(const SegmentSpec& spec, c10::ScalarType dtype,
                               const std::vector<SegmentSpec>& segments, int world_size,
                               ReduceScatter way) {
  const bool is_native = way == ReduceScatter::Native;
  const c10::ScalarType sent =
      is_native && dtype != spec.reduce_dtype ? c10::ScalarType::Float : dtype;
  const bool receives_all = !is_native || sent != dtype;
  int64_t block_numel = 0;
  for (const SegmentSpec& other : segments) {
    block_numel = std::max(block_numel, is_trained_block(other) ? other.shard_numel : 0);
  }
  const int64_t part =
      receives_all && block_numel > 0 ? std::min(spec.shard_numel, block_numel) : spec.shard_numel;
  return {sent, part,
          part * (receives_all ? world_size : 1) * static_cast<int64_t>(c10::elementSize(sent))};
}

LedgerEntry enter(int64_t bytes, MemoryKind kind, const std::shared_ptr<MemoryLedger>& ledger) {
  ledger->add(kind, bytes);
  return {nullptr, [=](void*) { ledger->add(kind, -bytes); }};
}

std::vector<int64_t> reduce_buffer_bytes(const std::vector<SegmentSpec>& segments, int world_size) {
  const int64_t block_bytes = largest_block_bytes(segments, world_size);
  std::vector<int64_t> bytes;
  for (const SegmentSpec& spec : segments) {
    bytes.push_back(spec.is_root ? segment_bytes(spec, world_size) : block_bytes);
  }
  return bytes;
}

bool BufferPool::has_room_for(int64_t bytes) const {
  int64_t lent = 0;
  for (const Slot& slot : slots_) {
    lent += slot.is_lent ? slot.bytes : 0;
  }
  return !limit_bytes_ || lent + bytes <= *limit_bytes_ ||
         std::ranges::any_of(slots_, [&](const Slot& slot) { return fits(slot, bytes); });
}

void BufferPool::make_room_for(int64_t bytes) {
  int64_t held = 0;
  for (const Slot& slot : slots_) {
    held += slot.bytes;
  }
  while (limit_bytes_ && held + bytes > *limit_bytes_) {
    const auto smallest =
        std::ranges::find_if(slots_, [](const Slot& slot) { return !slot.is_lent; });
    if (smallest == slots_.end()) {
      return;
    }
    held -= smallest->bytes;
    slots_.erase(smallest);
  }
}

void* BufferPool::take(int64_t bytes) {
  TORCH_INTERNAL_ASSERT(has_room_for(bytes), "more is received at once than was planned");
  auto found = std::ranges::find_if(slots_, [&](const Slot& slot) { return fits(slot, bytes); });
  if (found == slots_.end()) {
    make_room_for(bytes);
    Slot made{allocate_(bytes), bytes};
    found =
        slots_.insert(std::ranges::upper_bound(slots_, bytes, {}, &Slot::bytes), std::move(made));
  }
  found->is_lent = true;
  return found->data.get();
}

void BufferPool::give(const void* buffer) {
  const auto lent =
      std::ranges::find_if(slots_, [&](const Slot& slot) { return slot.data.get() == buffer; });
  TORCH_INTERNAL_ASSERT(lent != slots_.end() && lent->is_lent,
                        "a buffer is given back that is not lent");
  lent->is_lent = false;
}

BufferPool::Allocate allocate_on(c10::Device device, MemoryKind kind,
                                 std::shared_ptr<MemoryLedger> ledger) {
  return [device, kind, ledger = std::move(ledger)](int64_t bytes) {
    const auto buffer = std::make_shared<Buffer>(bytes, kind, ledger, device);
    return std::shared_ptr<void>(buffer, buffer->data());
  };
}

double join(double a, double b, ReduceOp op) {
  if (op == ReduceOp::Sum) {
    return a + b;
  }
  return b > a || std::isnan(b) ? b : a;
}

}  // namespace sherd::detail
