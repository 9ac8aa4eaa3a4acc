#include "storage/gather_arena.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "storage/device.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

auto holds(const void* slot) {
  return [slot](const auto& one) { return one.buffer.data() == slot; };
}

}  // namespace

// Frees the smallest free slot that leaves enough room, else the largest, until there is room.
void GatherArena::make_room(int64_t bytes) {
  while (held_bytes_ + bytes > limit_bytes_) {
    const int64_t missing = held_bytes_ + bytes - limit_bytes_;
    const auto slot = std::ranges::min_element(slots_, {}, [missing](const Slot& one) {
      const int64_t size = one.buffer.bytes();
      return std::tuple(one.used, size < missing, size < missing ? -size : size);
    });
    if (slot == slots_.end() || slot->used) {
      return;
    }
    if (slot->free_from) {  // for the next user of its memory
      slot->free_from->block(current_stream(device_));
    }
    held_bytes_ -= slot->buffer.bytes();
    slots_.erase(slot);
  }
}

void* GatherArena::acquire(int64_t bytes) {
  auto slot = std::ranges::find_if(
      slots_, [&](const Slot& one) { return !one.used && one.buffer.bytes() == bytes; });
  if (slot == slots_.end()) {
    make_room(bytes);
    Slot made;
    made.buffer = Buffer(bytes, kind_, ledger_, device_);
    made.free_from = reached_by_current_stream(device_);
    slot = slots_.insert(slots_.end(), std::move(made));
    held_bytes_ += bytes;
  }
  slot->used = true;
  return slot->buffer.data();
}

void GatherArena::release(void* slot) {
  release(slot, reached_by_current_stream(device_));
}

void GatherArena::release(void* slot, std::optional<c10::Event> free_from) {
  const auto held = std::ranges::find_if(slots_, holds(slot));
  check_invariant(held != slots_.end() && held->used, "a slot is released that is not held");
  held->used = false;
  held->free_from = std::move(free_from);
}

void GatherArena::free_from_now() {
  for (Slot& slot : slots_) {
    slot.free_from = reached_by_current_stream(device_);
  }
}

const c10::Event* GatherArena::free_from(void* slot) const {
  const auto held = std::ranges::find_if(slots_, holds(slot));
  return held == slots_.end() || !held->free_from ? nullptr : &*held->free_from;
}

}  // namespace sherd::detail
