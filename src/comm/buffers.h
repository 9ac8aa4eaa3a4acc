#pragma once
// The memory of a communicator: shards, gradient buffers, receive buffers, and their sizes. Also
// what the engine needs to reduce numbers by itself.

#include <functional>
#include <memory>
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

/// Returns the bytes of the largest block that is trained, of `shards` shards; 0 if there are only
/// roots.
[[nodiscard]] int64_t largest_block_bytes(const std::vector<SegmentSpec>& segments, int shards);

/// Returns the bytes that a rank receives if each other rank's shard comes in parts of
/// `part_bytes` (0: in one part).
[[nodiscard]] int64_t others_parts_bytes(const SegmentSpec& spec, c10::ScalarType dtype,
                                         int64_t part_bytes, int world_size);

/// How a device exchanges the gradients of a segment.
struct DeviceExchange {
  c10::ScalarType sent;   ///< dtype on the wire
  int64_t part_numel;     ///< elements of each rank's shard that are exchanged at a time
  int64_t receive_bytes;  ///< receive buffer
};

/// Plans the exchange of gradients in `dtype`. A segment that is larger than the largest block,
/// such as a root with an embedding, is exchanged in parts of the block's size: of all ranks'
/// shards, to be summed in rank order. A collective that sums by itself (ReduceScatter::Native)
/// rounds no sum further than `reduce_dtype`. It receives this rank's shard alone, at once, unless
/// the gradients are first copied to another dtype, which is done in parts of all shards.
[[nodiscard]] DeviceExchange device_exchange(const SegmentSpec& spec, c10::ScalarType dtype,
                                             const std::vector<SegmentSpec>& segments,
                                             int world_size, ReduceScatter way);

/// Bytes that are counted in a ledger until the entry is destroyed.
using LedgerEntry = std::shared_ptr<void>;
[[nodiscard]] LedgerEntry enter(int64_t bytes, MemoryKind kind,
                                const std::shared_ptr<MemoryLedger>& ledger);

/// Returns the bytes of each segment's reduce buffer. Blocks share buffers of the largest block's
/// size; a root segment has its own.
[[nodiscard]] std::vector<int64_t> reduce_buffer_bytes(const std::vector<SegmentSpec>& segments,
                                                       int world_size);

/// Buffers that collect the gradients of whole segments before their reduction, reused.
class ReduceBuffers {
 public:
  /// Returns a new buffer.
  using Allocate = std::function<std::shared_ptr<void>(int64_t bytes)>;
  ReduceBuffers() = default;
  /// Allocates nothing yet. `bytes`: reduce_buffer_bytes().
  ReduceBuffers(std::vector<int64_t> bytes, Allocate allocate)
      : bytes_(std::move(bytes)), allocate_(std::move(allocate)) {}
  /// Allocates on `device`.
  ReduceBuffers(const std::vector<SegmentSpec>& segments, int world_size,
                std::shared_ptr<MemoryLedger> ledger, c10::Device device);
  [[nodiscard]] void* acquire(Communicator::Segment segment);
  void release(void* buffer);
  void release_all();

 private:
  struct Slot {
    std::shared_ptr<void> data;
    int64_t bytes = 0;
    bool used = false;
  };
  std::vector<int64_t> bytes_;  ///< by segment
  Allocate allocate_;
  std::vector<Slot> slots_;
};

/// The memory for shards and gradients.
struct CommunicatorMemory {
  std::vector<Buffer> shards;     ///< if they are this rank's own
  std::vector<void*> travelling;  ///< by segment: this rank's shard in param_dtype
  ReduceBuffers reduce;
};

/// Lends buffers for other ranks' gradients, of any size, and holds no more than a limit. Lends
/// the smallest free buffer that is large enough; if there is none, frees those in the way of a
/// new one.
class ReceivePool {
 public:
  ReceivePool(int64_t limit_bytes, std::shared_ptr<MemoryLedger> ledger, c10::Device device)
      : limit_bytes_(limit_bytes), ledger_(std::move(ledger)), device_(device) {}

  /// Returns true if take() finds room. Always true if nothing is lent, up to the limit.
  [[nodiscard]] bool has_room_for(int64_t bytes) const;
  [[nodiscard]] Buffer take(int64_t bytes);
  /// Takes a buffer back.
  void give(Buffer buffer);

 private:
  int64_t limit_bytes_;
  int64_t lent_bytes_ = 0;
  std::shared_ptr<MemoryLedger> ledger_;
  c10::Device device_;
  std::vector<Buffer> free_;  ///< the smallest first
};

/// Throws Error(RanksDisagree) in the name of `at`: these two ranks of the world have run different
/// operations.
[[noreturn]] void throw_out_of_step(const std::string& at, int rank, int other);

/// Returns the sum or the maximum of two values; NaN if one of them is NaN.
[[nodiscard]] double join(double a, double b, ReduceOp op);

}  // namespace sherd::detail
