#pragma once
// Buffers that other ranks' gradients are received into.

#include <memory>
#include <vector>

#include "sherd/memory.h"

namespace sherd::detail {

/// Lends buffers of any size and holds no more than a limit. Gives the smallest that is free and
/// large enough; where there is none, frees those that are in the way of a new one.
class ReceivePool {
 public:
  ReceivePool(int64_t limit_bytes, std::shared_ptr<MemoryLedger> ledger, c10::Device device)
      : limit_bytes_(limit_bytes), ledger_(std::move(ledger)), device_(device) {}

  [[nodiscard]] int64_t limit_bytes() const { return limit_bytes_; }
  /// Whether take() would find room. Where nothing is lent it does, up to the limit.
  [[nodiscard]] bool has_room_for(int64_t bytes) const;
  [[nodiscard]] Buffer take(int64_t bytes);
  /// Takes one back.
  void give(Buffer buffer);

 private:
  int64_t limit_bytes_;
  int64_t lent_bytes_ = 0;
  std::shared_ptr<MemoryLedger> ledger_;
  c10::Device device_;
  std::vector<Buffer> free_;  ///< the smallest first
};

}  // namespace sherd::detail
