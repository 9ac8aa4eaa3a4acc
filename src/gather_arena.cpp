#include "gather_arena.h"

#include <algorithm>

#include <c10/util/Exception.h>

namespace sherd::detail {

GatherArena::GatherArena(std::vector<int64_t> shared_bytes, std::shared_ptr<MemoryLedger> ledger)
    : ledger_(std::move(ledger)) {
  std::sort(shared_bytes.rbegin(), shared_bytes.rend());
  int64_t largest = 0;
  for (const int64_t bytes : shared_bytes) {
    if (2 * bytes < largest || largest == 0) {
      largest = bytes;
    }
    slot_bytes_[bytes] = largest;
  }
}

void* GatherArena::acquire(int64_t bytes) {
  const auto shared = slot_bytes_.find(bytes);
  const int64_t wanted = shared == slot_bytes_.end() ? bytes : shared->second;
  auto free = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return !slot.used && slot.buffer.bytes() == wanted;
  });
  if (free == slots_.end()) {
    slots_.push_back({Buffer(wanted, MemoryKind::Gathered, ledger_), false});
    free = std::prev(slots_.end());
  }
  free->used = true;
  return free->buffer.data();
}

void GatherArena::release(void* slot) {
  auto held = std::find_if(slots_.begin(), slots_.end(),
                           [&](const Slot& s) { return s.buffer.data() == slot; });
  TORCH_INTERNAL_ASSERT(held != slots_.end() && held->used, "a slot is released that is not held");
  held->used = false;
}

}  // namespace sherd::detail
