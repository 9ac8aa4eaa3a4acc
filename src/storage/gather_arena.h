#pragma once
// The slots that gathered units lie in: a few, reused by all units, so that nothing is allocated in
// a steady step. Also those of pieces that rest on the host (offload/piece_in_slot.h).

#include <list>
#include <memory>
#include <optional>

#include <c10/core/Event.h>

#include "sherd/memory.h"

namespace sherd::detail {

/// Hands out memory for gathered segments and takes it back. Each size has slots of its own: blocks
/// of one shape use the same few, and an odd giant (an embedding between blocks) does not set the
/// size of all. At the limit free slots of other sizes are given back. A segment never lies in a
/// larger slot: what it wasted would be missing later, when other sizes are in use together.
class GatherArena {
 public:
  /// `limit_bytes`: of all slots, unless more than that is in use at once.
  GatherArena(int64_t limit_bytes, std::shared_ptr<MemoryLedger> ledger,
              c10::Device device = c10::Device(c10::kCPU), MemoryKind kind = MemoryKind::Gathered)
      : limit_bytes_(limit_bytes), ledger_(std::move(ledger)), device_(device), kind_(kind) {}
  void set_limit(int64_t bytes) { limit_bytes_ = bytes; }
  [[nodiscard]] void* acquire(int64_t bytes);
  /// Used by the current stream, as far as that has come.
  void release(void* slot);
  /// Used by another stream: when `free_from` has come it is not any more.
  void release(void* slot, std::optional<c10::Event> free_from);
  /// On a device with streams: comes when nothing uses a slot any more that was acquired, as far as
  /// the current stream had come when it was released or made. Null elsewhere.
  [[nodiscard]] const c10::Event* free_from(void* slot) const;
  /// Slots are free from where the current stream is now, whatever used them before. It must follow
  /// that already.
  void free_from_now();
  /// The current stream waits for that.
  void await_free(void* slot) const;
  /// Frees slots that are not used, down to the limit.
  void trim() { make_room(0); }

 private:
  struct Slot {
    Buffer buffer;
    bool used = false;
    std::optional<c10::Event> free_from;
  };
  using Slots = std::list<Slot>;
  [[nodiscard]] Slots::iterator free_slot_of(int64_t bytes);
  [[nodiscard]] Slots::iterator next_to_free(int64_t missing_bytes);
  void make_room(int64_t bytes);
  void await(const Slot& slot) const;

  int64_t limit_bytes_;
  int64_t held_bytes_ = 0;
  Slots slots_;
  std::shared_ptr<MemoryLedger> ledger_;
  c10::Device device_;
  MemoryKind kind_;
};

}  // namespace sherd::detail
