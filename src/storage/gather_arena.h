#pragma once
// Slots of device memory that are reused, so that a steady step allocates nothing.

#include <list>
#include <memory>
#include <optional>

#include <c10/core/Event.h>

#include "sherd/memory.h"

namespace sherd::detail {

/// Hands out slots for gathered segments, gradient shards and storages of the host. A slot is
/// reused only for the same size: blocks of one shape share a few, and one large segment (an
/// embedding) does not set the size of all. A larger slot would waste memory that other sizes need
/// later. At the limit free slots of other sizes are freed.
class GatherArena {
 public:
  /// `limit_bytes`: of all slots, unless more than that is in use at once.
  GatherArena(int64_t limit_bytes, std::shared_ptr<MemoryLedger> ledger,
              c10::Device device = c10::Device(c10::kCPU), MemoryKind kind = MemoryKind::Gathered)
      : limit_bytes_(limit_bytes), ledger_(std::move(ledger)), device_(device), kind_(kind) {}
  void set_limit(int64_t bytes) { limit_bytes_ = bytes; }
  [[nodiscard]] void* acquire(int64_t bytes);
  /// The slot is free after the work queued on the current stream.
  void release(void* slot);
  /// The slot is free after `free_from`; unset: at once.
  void release(void* slot, std::optional<c10::Event> free_from);
  /// Returns the event after which an acquired slot may be used, as of its release or creation;
  /// null on devices without streams.
  [[nodiscard]] const c10::Event* free_from(void* slot) const;
  /// Makes all slots free from where the current stream is now. It must be ordered behind their
  /// users.
  void free_from_now();
  /// Frees slots that are not used, down to the limit.
  void trim() { make_room(0); }

 private:
  struct Slot {
    Buffer buffer;
    bool used = false;
    std::optional<c10::Event> free_from;
  };
  void make_room(int64_t bytes);

  int64_t limit_bytes_;
  int64_t held_bytes_ = 0;
  std::list<Slot> slots_;
  std::shared_ptr<MemoryLedger> ledger_;
  c10::Device device_;
  MemoryKind kind_;
};

}  // namespace sherd::detail
