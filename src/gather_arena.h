#pragma once
// The slots that gathered units lie in: a few, reused by all units, so that nothing is allocated in
// a steady step.

#include <list>
#include <map>
#include <vector>

#include "sherd/memory.h"

namespace sherd::detail {

/// Hands out memory for gathered segments and takes it back. Segments within a factor of two share
/// slots of the largest one's size, so that blocks of one shape use the same few, and an odd giant
/// (an embedding between blocks) does not set the size of all.
class GatherArena {
 public:
  /// `shared_bytes`: the sizes of all segments that share slots. Any other size gets slots of
  /// exactly its own.
  GatherArena(std::vector<int64_t> shared_bytes, std::shared_ptr<MemoryLedger> ledger);
  [[nodiscard]] void* acquire(int64_t bytes);
  void release(void* slot);

 private:
  struct Slot {
    Buffer buffer;
    bool used = false;
  };
  std::map<int64_t, int64_t> slot_bytes_;  // of a segment -> of its slot
  std::list<Slot> slots_;
  std::shared_ptr<MemoryLedger> ledger_;
};

}  // namespace sherd::detail
