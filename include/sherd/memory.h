#pragma once
// Counts the engine's own bytes where they are allocated, so that memory limits can be stated and
// tested. Also copies between the host and the model's device.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Event.h>

namespace sherd {

/// The purpose of an engine buffer.
enum class MemoryKind : std::uint8_t {
  MasterShard,  ///< master values in addition to the shard in param_dtype: fp32, or the low halves
  TravellingShard,    ///< this rank's shards in param_dtype
  OptimizerState,     ///< the optimizer's moments
  GradientShard,      ///< this rank's shards of the gradient sums, in reduce_dtype
  UnshardedGradient,  ///< fp32 gradient sums of whole units, for micro-batches without
                      ///< communication
  PostForwardShard,   ///< shards of a smaller group, kept from forward to backward
  Gathered,           ///< slots of gathered units
  ReduceBuffer,       ///< gradients of whole units before their reduction
  ReceiveBuffer,      ///< receive buffers of a communicator
  OffloadSlot,        ///< working memory for state that is stored on disk or on the host
};
/// The number of kinds.
inline constexpr int kMemoryKinds = 10;

/// Bytes of one sharded model's engine buffers on this rank, by kind, and their peak since the last
/// reset. It excludes the module's own buffers, activations, copies in with_full_parameters(), and
/// host copies of ranks that share a GPU. Not thread-safe.
class MemoryLedger {
 public:
  /// Records allocated bytes, or freed bytes if negative.
  void add(MemoryKind kind, std::int64_t bytes) noexcept;
  /// Returns the current bytes of one kind.
  [[nodiscard]] std::int64_t bytes(MemoryKind kind) const noexcept {
    return bytes_[static_cast<std::size_t>(kind)];
  }
  /// Returns the bytes that a sharded model always holds: masters, shards in param_dtype and
  /// optimizer state.
  [[nodiscard]] std::int64_t sharded_state_bytes() const noexcept;
  /// Returns the current bytes of all kinds.
  [[nodiscard]] std::int64_t total_bytes() const noexcept { return total_; }
  /// Returns the highest total_bytes() since construction or reset_peak().
  [[nodiscard]] std::int64_t peak_bytes() const noexcept { return peak_; }
  /// Sets the peak to the current bytes.
  void reset_peak() noexcept { peak_ = total_; }
  /// Returns the number of allocations and frees.
  [[nodiscard]] std::int64_t changes() const noexcept { return changes_; }
  /// Records bytes stored on disk (Offload), or removed from it if negative.
  void add_offloaded(std::int64_t bytes) noexcept { offloaded_ += bytes; }
  /// Returns the bytes stored on disk. No other count includes them.
  [[nodiscard]] std::int64_t offloaded_bytes() const noexcept { return offloaded_; }
  /// Records host bytes that store parts of a device's model (Offload), or freed ones if negative.
  void add_on_host(std::int64_t bytes) noexcept { on_host_ += bytes; }
  /// Returns the bytes of pinned host memory. No other count includes them.
  [[nodiscard]] std::int64_t on_host_bytes() const noexcept { return on_host_; }

 private:
  std::array<std::int64_t, kMemoryKinds> bytes_{};
  std::int64_t total_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t offloaded_ = 0;
  std::int64_t on_host_ = 0;
  std::int64_t changes_ = 0;
};

/// Zeroed memory of a device, counted in a ledger for its lifetime. On the CPU it is aligned to 64
/// bytes, or to huge pages if it is large.
class Buffer {
 public:
  Buffer() = default;
  /// Allocates `bytes` bytes and counts them in `ledger`, which the buffer keeps alive. Throws
  /// Error(OutOfMemory), naming bytes and kind.
  Buffer(std::int64_t bytes, MemoryKind kind, std::shared_ptr<MemoryLedger> ledger,
         c10::Device device = c10::Device(c10::kCPU));
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  /// Returns the first byte; null for an empty buffer.
  [[nodiscard]] void* data() const noexcept { return bytes_ > 0 ? data_.get() : nullptr; }
  /// Returns the size given at construction.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

 private:
  c10::DataPtr data_;
  std::int64_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::Gathered;
  std::shared_ptr<MemoryLedger> ledger_;
};

/// A snapshot of a tensor's values at this point of its device's stream. From a GPU the values go
/// to pinned memory in the order of the current stream; the host waits only when it reads them.
/// PyTorch: `tensor.to("cpu", non_blocking=True)` with an event after it.
class HostCopy {
 public:
  /// Starts a detached copy of `tensor`. Not collective. Throws Error(OutOfMemory).
  explicit HostCopy(const at::Tensor& tensor);
  /// Blocks until the copy is complete and returns the values on the host, in the tensor's shape
  /// and dtype.
  [[nodiscard]] const at::Tensor& wait() const;

 private:
  at::Tensor on_host_;
  std::optional<c10::Event> come_;  ///< after the copy; unset for a tensor on the host
};

/// Returns the tensor on `device`, or the tensor itself if it is there. A copy from the host to a
/// GPU uses pinned memory and the order of the current stream; the host does not wait. LibTorch
/// copies a tensor that requires a gradient. Throws Error(Usage) in a micro-batch that is captured
/// (MicroBatchGraphs). PyTorch: `tensor.pin_memory().to(device, non_blocking=True)`.
[[nodiscard]] at::Tensor to_device(const at::Tensor& tensor, c10::Device device);

}  // namespace sherd
