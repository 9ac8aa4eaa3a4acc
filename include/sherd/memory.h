#pragma once
// The engine's own bytes, counted where they are allocated, so that its memory limits can be stated
// and tested.

#include <array>
#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>

namespace sherd {

/// What a buffer of the engine is for.
enum class MemoryKind : std::uint8_t {
  MasterShard,        ///< what is kept of masters beside the travelling shard: fp32, or low halves
  TravellingShard,    ///< this rank's pieces in the dtype that travels
  OptimizerState,     ///< moments
  GradientShard,      ///< sums of gradients of this rank's pieces, in reduce_dtype
  UnshardedGradient,  ///< fp32 sums of whole units, where micro-batches accumulate without
                      ///< communication
  PostForwardShard,   ///< pieces of a smaller group, kept from forward to backward
  Gathered,           ///< slots that gathered units lie in
  ReduceBuffer,       ///< whole units' gradients before their reduction
  ReceiveBuffer,      ///< what a communicator receives into
  OffloadSlot,        ///< what rests on a disk or on the host, while it is worked with
};
/// How many kinds there are.
inline constexpr int kMemoryKinds = 10;

/// Bytes of the engine's buffers of one sharded model on this rank, by kind, and their peak since
/// the last reset. Not in it: the module's own buffers, activations, copies in
/// with_full_parameters(), host copies of ranks that share a GPU. Not thread-safe.
class MemoryLedger {
 public:
  /// Records bytes that were allocated or, if negative, freed.
  void add(MemoryKind kind, std::int64_t bytes) noexcept;
  /// Bytes of one kind that are held now.
  [[nodiscard]] std::int64_t bytes(MemoryKind kind) const noexcept {
    return bytes_[static_cast<std::size_t>(kind)];
  }
  /// Master, travelling shards and optimizer state: what a sharded model always holds.
  [[nodiscard]] std::int64_t sharded_state_bytes() const noexcept;
  /// Bytes of all kinds that are held now.
  [[nodiscard]] std::int64_t total_bytes() const noexcept { return total_; }
  /// The highest total_bytes() since construction or reset_peak().
  [[nodiscard]] std::int64_t peak_bytes() const noexcept { return peak_; }
  /// Sets the peak to what is held now.
  void reset_peak() noexcept { peak_ = total_; }
  /// How often something was allocated or freed.
  [[nodiscard]] std::int64_t changes() const noexcept { return changes_; }
  /// Records bytes that rest on a disk (Offload), or no longer.
  void add_offloaded(std::int64_t bytes) noexcept { offloaded_ += bytes; }
  /// Bytes that rest on a disk; they are in none of the other counts.
  [[nodiscard]] std::int64_t offloaded_bytes() const noexcept { return offloaded_; }
  /// Records bytes of the host that parts of a device's model rest in (Offload), or no longer.
  void add_on_host(std::int64_t bytes) noexcept { on_host_ += bytes; }
  /// Bytes of pinned memory of the host; they are in none of the other counts.
  [[nodiscard]] std::int64_t on_host_bytes() const noexcept { return on_host_; }

 private:
  std::array<std::int64_t, kMemoryKinds> bytes_{};
  std::int64_t total_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t offloaded_ = 0;
  std::int64_t on_host_ = 0;
  std::int64_t changes_ = 0;
};

/// Zeroed memory of a device; on the CPU aligned to 64 bytes, to huge pages where it is large.
/// Counted in a ledger while it lives.
class Buffer {
 public:
  Buffer() = default;
  /// Allocates `bytes` bytes and counts them in `ledger`, which the buffer keeps alive. Throws
  /// Error(OutOfMemory), which names bytes and kind.
  Buffer(std::int64_t bytes, MemoryKind kind, std::shared_ptr<MemoryLedger> ledger,
         c10::Device device = c10::Device(c10::kCPU));
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  /// Its first byte; null for an empty buffer.
  [[nodiscard]] void* data() const noexcept { return bytes_ > 0 ? data_.get() : nullptr; }
  /// The size it was made with.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

 private:
  c10::DataPtr data_;
  std::int64_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::Gathered;
  std::shared_ptr<MemoryLedger> ledger_;
};

}  // namespace sherd
