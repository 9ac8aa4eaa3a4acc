#pragma once
// This rank's part of shared memory, entered in the ledger, and its reduce buffers there.

#include <memory>
#include <vector>

#include "comm/reduce_buffers.h"
#include "comm/shared_memory/layout.h"
#include "comm/shared_memory/region.h"

namespace sherd::detail {

/// Bytes in the ledger while it lives.
class LedgerEntry {
 public:
  LedgerEntry(int64_t bytes, MemoryKind kind, std::shared_ptr<MemoryLedger> ledger)
      : bytes_(bytes), kind_(kind), ledger_(std::move(ledger)) {
    ledger_->add(kind_, bytes_);
  }
  LedgerEntry(LedgerEntry&& other) noexcept = default;
  LedgerEntry& operator=(LedgerEntry&&) = delete;
  LedgerEntry(const LedgerEntry&) = delete;
  LedgerEntry& operator=(const LedgerEntry&) = delete;
  ~LedgerEntry() {
    if (ledger_ != nullptr) {
      ledger_->add(kind_, -bytes_);
    }
  }

 private:
  int64_t bytes_;
  MemoryKind kind_;
  std::shared_ptr<MemoryLedger> ledger_;
};

/// As ReduceBuffers, in shared memory: the first free one is used, and gets its pages when it is
/// used for the first time.
class SharedReduceBuffers final : public ReduceBufferPool {
 public:
  SharedReduceBuffers(const SharedLayout& layout, int rank, const SharedRegion& region,
                      std::shared_ptr<MemoryLedger> ledger);
  [[nodiscard]] void* acquire(Communicator::Segment segment) override;
  void release(void* buffer) override;
  void release_all() override;

 private:
  struct Slot {
    SharedLayout::ReduceBuffer place;
    bool used = false;
    bool has_pages = false;
  };
  const SharedLayout& layout_;
  const SharedRegion& region_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::vector<Slot> slots_;
  std::vector<LedgerEntry> entries_;
};

}  // namespace sherd::detail
