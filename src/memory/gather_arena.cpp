#include "memory/gather_arena.h"

#include <algorithm>

#include <c10/util/Exception.h>

namespace sherd::detail {

GatherArena::Slots::iterator GatherArena::smallest_free(int64_t at_least) {
  auto best = slots_.end();
  for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
    if (!slot->used && slot->buffer.bytes() >= at_least &&
        (best == slots_.end() || slot->buffer.bytes() < best->buffer.bytes())) {
      best = slot;
    }
  }
  return best;
}

void GatherArena::make_room(int64_t bytes) {
  while (held_bytes_ + bytes > limit_bytes_) {
    const auto slot = smallest_free(0);
    if (slot == slots_.end()) {
      return;
    }
    held_bytes_ -= slot->buffer.bytes();
    slots_.erase(slot);
  }
}

void* GatherArena::acquire(int64_t bytes) {
  auto slot = smallest_free(bytes);
  const bool fits_one_more = held_bytes_ + bytes <= limit_bytes_;
  if (slot == slots_.end() || (slot->buffer.bytes() > bytes && fits_one_more)) {
    make_room(bytes);
    slot =
        slots_.insert(slots_.end(), {Buffer(bytes, MemoryKind::Gathered, ledger_, device_), false});
    held_bytes_ += bytes;
  }
  slot->used = true;
  return slot->buffer.data();
}

void GatherArena::release(void* slot) {
  auto held = std::find_if(slots_.begin(), slots_.end(),
                           [&](const Slot& s) { return s.buffer.data() == slot; });
  TORCH_INTERNAL_ASSERT(held != slots_.end() && held->used, "a slot is released that is not held");
  held->used = false;
}

}  // namespace sherd::detail
