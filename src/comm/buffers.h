#pragma once
// The memory of a communicator: shards, gradient buffers, receive buffers, and their sizes.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/communicator.h"
#include "sherd/world.h"

namespace sherd::detail {

/// Two blocks' gradients at a time: one is computed while the other is summed.
inline constexpr size_t kReductionsInFlight = 2;

/// Returns the bytes of `shards` shards of a segment.
[[nodiscard]] inline int64_t segment_bytes(const SegmentSpec& spec, int shards) {
  return spec.shard_numel * shards * static_cast<int64_t>(c10::elementSize(spec.dtype));
}

/// Returns the bytes of the largest trained block, of `shards` shards; 0 if there is none.
[[nodiscard]] int64_t largest_block_bytes(const std::vector<SegmentSpec>& segments, int shards);

/// Returns the bytes that a rank receives at a time, in parts of `part_bytes` (0: one) per shard.
[[nodiscard]] int64_t others_parts_bytes(const SegmentSpec& spec, c10::ScalarType dtype,
                                         int64_t part_bytes, int world_size);

/// How a device exchanges the gradients of a segment.
struct DeviceExchange {
  c10::ScalarType sent;   ///< dtype on the wire
  int64_t part_numel;     ///< elements of each rank's shard that are exchanged at a time
  int64_t receive_bytes;  ///< receive buffer
};

/// Plans the exchange of gradients in `dtype`. A segment larger than the largest block is exchanged
/// in parts of the block's size. ReduceScatter::Native rounds no sum further than `reduce_dtype`;
/// it receives this rank's shard at once, unless the gradients are first copied to another dtype.
[[nodiscard]] DeviceExchange device_exchange(const SegmentSpec& spec, c10::ScalarType dtype,
                                             const std::vector<SegmentSpec>& segments,
                                             int world_size, ReduceScatter way);

/// Bytes that are counted in a ledger until the entry is destroyed.
using LedgerEntry = std::shared_ptr<void>;
[[nodiscard]] LedgerEntry enter(int64_t bytes, MemoryKind kind,
                                const std::shared_ptr<MemoryLedger>& ledger);

/// Returns the bytes of each segment's reduce buffer: for blocks, those of the largest one.
[[nodiscard]] std::vector<int64_t> reduce_buffer_bytes(const std::vector<SegmentSpec>& segments,
                                                       int world_size);

/// Lends buffers and takes them back. With a limit it lends the smallest free buffer that is large
/// enough; if there is none, it frees those in the way of a new one. Without a limit it lends
/// buffers of the exact size and frees none.
class BufferPool {
 public:
  /// Returns new memory.
  using Allocate = std::function<std::shared_ptr<void>(int64_t bytes)>;
  BufferPool() = default;
  explicit BufferPool(Allocate allocate, std::optional<int64_t> limit_bytes = std::nullopt)
      : allocate_(std::move(allocate)), limit_bytes_(limit_bytes) {}

  /// Returns true if take() finds room. Always true if nothing is lent, up to the limit.
  [[nodiscard]] bool has_room_for(int64_t bytes) const;
  [[nodiscard]] void* take(int64_t bytes);
  void give(const void* buffer);
  void give_all() {
    for (Slot& slot : slots_) {
      slot.is_lent = false;
    }
  }

 private:
  struct Slot {
    std::shared_ptr<void> data;
    int64_t bytes = 0;
    bool is_lent = false;
  };
  [[nodiscard]] bool fits(const Slot& slot, int64_t bytes) const {
    return !slot.is_lent && (limit_bytes_ ? slot.bytes >= bytes : slot.bytes == bytes);
  }
  void make_room_for(int64_t bytes);

  Allocate allocate_;
  std::optional<int64_t> limit_bytes_;
  std::vector<Slot> slots_;  ///< the smallest first
};

/// Returns an allocator on a device that counts the buffers in the ledger.
[[nodiscard]] BufferPool::Allocate allocate_on(c10::Device device, MemoryKind kind,
                                               std::shared_ptr<MemoryLedger> ledger);

/// The memory for shards and gradients.
struct CommunicatorMemory {
  std::vector<Buffer> shards;         ///< if they are this rank's own
  std::vector<void*> travelling;      ///< by segment: this rank's shard in param_dtype
  std::vector<int64_t> reduce_bytes;  ///< reduce_buffer_bytes()
  BufferPool reduce;                  ///< gradients of whole segments before their reduction
  [[nodiscard]] void* acquire(Communicator::Segment segment) {
    return reduce.take(reduce_bytes[static_cast<size_t>(segment)]);
  }
};

/// Throws Error(RanksDisagree): at `at`, these ranks of the world had run different operations.
[[noreturn]] void throw_out_of_step(const std::string& at, int rank, int other);

/// Returns the sum or the maximum of two values; NaN if one of them is NaN.
[[nodiscard]] double join(double a, double b, ReduceOp op);

}  // namespace sherd::detail
