#include "storage/gather_arena.h"

#include <algorithm>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "storage/own_work.h"
#include "storage/streams.h"

namespace sherd::detail {

GatherArena::Slots::iterator GatherArena::free_slot_of(int64_t bytes) {
  return std::find_if(slots_.begin(), slots_.end(),
                      [&](const Slot& slot) { return !slot.used && slot.buffer.bytes() == bytes; });
}

// The smallest free slot that leaves enough room, else the largest.
GatherArena::Slots::iterator GatherArena::next_to_free(int64_t missing_bytes) {
  auto best = slots_.end();
  for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
    if (slot->used) {
      continue;
    }
    const auto rank = [&](const Slot& other) {
      const int64_t bytes = other.buffer.bytes();
      return std::pair(bytes < missing_bytes, bytes < missing_bytes ? -bytes : bytes);
    };
    if (best == slots_.end() || rank(*slot) < rank(*best)) {
      best = slot;
    }
  }
  return best;
}

void GatherArena::make_room(int64_t bytes) {
  while (held_bytes_ + bytes > limit_bytes_) {
    const auto slot = next_to_free(held_bytes_ + bytes - limit_bytes_);
    if (slot == slots_.end()) {
      return;
    }
    await(*slot);  // whoever is given its memory
    held_bytes_ -= slot->buffer.bytes();
    slots_.erase(slot);
  }
}

void* GatherArena::acquire(int64_t bytes) {
  auto slot = free_slot_of(bytes);
  if (slot == slots_.end()) {
    make_room(bytes);
    slot = slots_.emplace(slots_.end());
    slot->buffer = Buffer(bytes, kind_, ledger_, device_);
    slot->free_from = reached_by_current_stream(device_);
    held_bytes_ += bytes;
  }
  slot->used = true;
  return slot->buffer.data();
}

void GatherArena::release(void* slot) {
  release(slot, reached_by_current_stream(device_));
}

void GatherArena::release(void* slot, std::optional<c10::Event> free_from) {
  auto held = std::find_if(slots_.begin(), slots_.end(),
                           [&](const Slot& s) { return s.buffer.data() == slot; });
  check_invariant(held != slots_.end() && held->used, "a slot is released that is not held");
  held->used = false;
  held->free_from = std::move(free_from);
}

void GatherArena::await(const Slot& slot) const {
  if (slot.free_from) {
    slot.free_from->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
}

void GatherArena::free_from_now() {
  for (Slot& slot : slots_) {
    slot.free_from = reached_by_current_stream(device_);
  }
}

const c10::Event* GatherArena::free_from(void* slot) const {
  const auto held = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& s) { return s.buffer.data() == slot; });
  return held == slots_.end() || !held->free_from ? nullptr : &*held->free_from;
}

void GatherArena::await_free(void* slot) const {
  const auto held = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& s) { return s.buffer.data() == slot; });
  await(*held);
}

}  // namespace sherd::detail
