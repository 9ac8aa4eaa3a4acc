#pragma once
// Memory of the host that a device copies from and to by itself.

#include <cstdint>
#include <memory>

#include "sherd/memory.h"

namespace sherd::detail {

/// How a device is told of memory of the host, so that it copies without the host's help.
struct HostPinning {
  /// False where it cannot be. The thread's current device is the one that is to copy.
  bool (*pin)(void* data, std::int64_t bytes) = nullptr;
  void (*unpin)(void* data) = nullptr;
};

/// For devices of this kind, from now on; null: their copies wait, and are the same otherwise.
/// Whoever loads their library calls it. Throws nothing.
void set_host_pinning(c10::DeviceType type, const HostPinning* pinning);

/// Zeroed memory of the host, pinned for a device; counted in a ledger as the host's. For the meta
/// device there is none: it is only counted.
class PinnedBuffer {
 public:
  /// Throws Error(OutOfMemory), which names bytes and kind.
  PinnedBuffer(std::int64_t bytes, MemoryKind kind, std::shared_ptr<MemoryLedger> ledger,
               c10::Device device);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  /// Of the meta device an address of nothing.
  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  /// The host's, or meta.
  [[nodiscard]] c10::Device device() const noexcept { return device_; }

 private:
  c10::Device device_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::int64_t bytes_;
  Buffer memory_;
  void* data_;
  const HostPinning* pinned_by_ = nullptr;
  c10::Device pinned_for_ = c10::kCPU;
};

}  // namespace sherd::detail
