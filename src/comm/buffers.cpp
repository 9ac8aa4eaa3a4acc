#include "comm/buffers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

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

ReduceBuffers::ReduceBuffers(const std::vector<SegmentSpec>& segments, int world_size,
                             std::shared_ptr<MemoryLedger> ledger, c10::Device device)
    : ReduceBuffers(reduce_buffer_bytes(segments, world_size),
                    [ledger = std::move(ledger), device](int64_t bytes) {
                      const auto buffer =
                          std::make_shared<Buffer>(bytes, MemoryKind::ReduceBuffer, ledger, device);
                      return std::shared_ptr<void>(buffer, buffer->data());
                    }) {}

void* ReduceBuffers::acquire(Communicator::Segment segment) {
  const int64_t wanted = bytes_[static_cast<size_t>(segment)];
  auto free = std::find_if(slots_.begin(), slots_.end(),
                           [&](const Slot& slot) { return !slot.used && slot.bytes == wanted; });
  if (free == slots_.end()) {
    slots_.push_back({allocate_(wanted), wanted});
    free = slots_.end() - 1;
  }
  free->used = true;
  return free->data.get();
}

void ReduceBuffers::release(void* buffer) {
  const auto held = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& slot) { return slot.data.get() == buffer; });
  TORCH_INTERNAL_ASSERT(held != slots_.end() && held->used,
                        "a reduce buffer is released that is not held");
  held->used = false;
}

void ReduceBuffers::release_all() {
  for (Slot& slot : slots_) {
    slot.used = false;
  }
}

bool ReceivePool::has_room_for(int64_t bytes) const {
  return lent_bytes_ + bytes <= limit_bytes_ || (!free_.empty() && free_.back().bytes() >= bytes);
}

Buffer ReceivePool::take(int64_t bytes) {
  TORCH_INTERNAL_ASSERT(has_room_for(bytes), "more is received at once than was planned");
  const auto found = std::ranges::lower_bound(free_, bytes, {}, &Buffer::bytes);
  Buffer taken;
  if (found != free_.end()) {
    taken = std::move(*found);
    free_.erase(found);
  } else {
    const auto held = [&] {
      return std::accumulate(free_.begin(), free_.end(), lent_bytes_,
                             [](int64_t sum, const Buffer& b) { return sum + b.bytes(); });
    };
    while (!free_.empty() && held() + bytes > limit_bytes_) {
      free_.erase(free_.begin());
    }
    taken = Buffer(bytes, MemoryKind::ReceiveBuffer, ledger_, device_);
  }
  lent_bytes_ += taken.bytes();
  return taken;
}

void ReceivePool::give(Buffer buffer) {
  lent_bytes_ -= buffer.bytes();
  const auto place = std::ranges::lower_bound(free_, buffer.bytes(), {}, &Buffer::bytes);
  free_.insert(place, std::move(buffer));
}

double join(double a, double b, ReduceOp op) {
  if (op == ReduceOp::Sum) {
    return a + b;
  }
  return b > a || std::isnan(b) ? b : a;
}

}  // namespace sherd::detail
