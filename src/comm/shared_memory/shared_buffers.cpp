#include "comm/shared_memory/shared_buffers.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

namespace sherd::detail {

SharedReduceBuffers::SharedReduceBuffers(const SharedLayout& layout, int rank,
                                         const SharedRegion& region,
                                         std::shared_ptr<MemoryLedger> ledger)
    : layout_(layout), region_(region), ledger_(std::move(ledger)) {
  for (const SharedLayout::ReduceBuffer& place : layout.reduce_buffers(rank)) {
    slots_.push_back({place});
  }
}

void* SharedReduceBuffers::acquire(Communicator::Segment segment) {
  const int64_t wanted = layout_.reduce_buffer_bytes(segment);
  const auto free = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return !slot.used && slot.place.bytes == wanted;
  });
  TORCH_INTERNAL_ASSERT(free != slots_.end(), "more reduce buffers are in use than there are");
  if (!std::exchange(free->has_pages, true)) {
    region_.populate(region_.data() + free->place.offset, wanted);
    entries_.emplace_back(wanted, MemoryKind::ReduceBuffer, ledger_);
  }
  free->used = true;
  return region_.data() + free->place.offset;
}

void SharedReduceBuffers::release(void* buffer) {
  const auto held = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return region_.data() + slot.place.offset == buffer;
  });
  TORCH_INTERNAL_ASSERT(held != slots_.end() && held->used,
                        "a reduce buffer is released that is not held");
  held->used = false;
}

void SharedReduceBuffers::release_all() {
  for (Slot& slot : slots_) {
    slot.used = false;
  }
}

}  // namespace sherd::detail
