#pragma once
// Streams, events and CUDA graphs of a device, and memory of its host: mapped, pinned.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "sherd/memory.h"

namespace sherd::detail {

enum class StreamPriority : bool { Normal, High };

/// Returns a stream of the device's pool. PyTorch: `torch.Stream(device, priority=…)`.
[[nodiscard]] inline c10::Stream side_stream(c10::Device device, StreamPriority priority) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, priority == StreamPriority::High);
}

/// Returns the thread's current stream of a device.
[[nodiscard]] inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Returns an event after all work queued on the current stream; none on CPUs and meta.
[[nodiscard]] std::optional<c10::Event> reached_by_current_stream(c10::Device device);

/// A stream per direction, since links carry both at once. On the meta device they copy nothing,
/// have no events, and nothing waits for them.
class CopyStreams {
 public:
  explicit CopyStreams(c10::Device device);
  /// Orders the current stream behind all copies.
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  [[nodiscard]] const c10::Stream& to_device() const { return to_device_; }
  [[nodiscard]] const c10::Stream& to_host() const { return to_host_; }
  [[nodiscard]] c10::Stream current() const { return current_stream(to_device_.device()); }
  /// Orders what `later` is given from now on behind what `earlier` has been given.
  static void order(const c10::Stream& earlier, const c10::Stream& later) {
    order(reached(earlier), later);
  }
  /// The same behind an event, if there is one.
  static void order(const std::optional<c10::Event>& earlier, const c10::Stream& later);
  /// Returns an event after what the stream has been given.
  [[nodiscard]] static std::optional<c10::Event> reached(const c10::Stream& stream);
  /// Copies on a stream; both tensors must stay until then.
  static void copy(const c10::Stream& stream, const at::Tensor& from, const at::Tensor& to);
  /// Blocks until what the stream has been given has ended.
  static void synchronize(const c10::Stream& stream);
  /// The same for all copies.
  void synchronize() const;

 private:
  c10::Stream to_device_;
  c10::Stream to_host_;
};

/// What a kind of devices can do beyond what c10 asks of all. During the capture of a graph, what
/// its stream is given, and the streams that follow it by events, is recorded and not run; waits
/// for the device fail. The thread that began makes all calls.
struct DeviceFunctions {
  /// Begins to capture the thread's current stream, which is not the default one. Tensors made
  /// until the end are in a pool that graphs share: that of `other`, if given.
  std::shared_ptr<void> (*begin_capture)(const std::shared_ptr<void>& other) = nullptr;
  /// Ends it. Throws c10::Error for what cannot be a graph.
  void (*end_capture)(void* graph) = nullptr;
  /// Runs the graph on the thread's current stream.
  void (*launch)(void* graph) = nullptr;
  /// Returns the number of the capture that the stream is in; 0 for none.
  std::uint64_t (*capture_of)(const c10::Stream& stream) = nullptr;
  /// Pins host memory, so that it is copied without the host's help. Returns false if it cannot be.
  /// The thread's current device is the one that copies.
  bool (*pin)(void* data, std::int64_t bytes) = nullptr;
  void (*unpin)(void* data) = nullptr;
};

/// Registers them for devices of this kind. Without them there are no graphs, nothing is pinned and
/// copies wait, with the same results. The caller is whoever loads the devices' library. Throws
/// nothing.
void set_device_functions(c10::DeviceType type, const DeviceFunctions* functions);
/// Null if there are none.
[[nodiscard]] const DeviceFunctions* device_functions(c10::DeviceType type);

/// Returns the number of the capture that a stream, or the thread's current one of a device, is in;
/// 0 for none. An event can be waited for only in the capture that it was recorded in.
[[nodiscard]] std::uint64_t capture_of(const c10::Stream& stream);
[[nodiscard]] std::uint64_t capture_of(c10::Device device);

/// A captured CUDA graph, of a device that has device_functions().
class DeviceGraph {
 public:
  /// Captures what `work` queues on the current stream, which is `stream` during the call and must
  /// have nothing else to do. `other`: a graph that never runs at the same time; null: none.
  /// Exceptions of `work` pass, and c10::Error for what cannot be a graph; the capture has ended
  /// then.
  DeviceGraph(const c10::Stream& stream, const DeviceGraph* other,
              const std::function<void()>& work);
  /// Runs it on the current stream, with the addresses of the capture.
  void launch() const;

 private:
  const DeviceFunctions* functions_;
  std::shared_ptr<void> graph_;
};

/// Bytes of a huge page.
inline constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

struct Unmap {
  std::int64_t bytes = 0;
  void operator()(void* data) const;
};
using Mapping = std::unique_ptr<void, Unmap>;
/// Returns a new private mapping of zeros, aligned to huge pages if it is large; null, with errno
/// set, if it fails.
[[nodiscard]] Mapping map_memory(std::int64_t bytes, int protection, int flags = 0);

/// Zeroed host memory, pinned for a device and counted in the ledger as the host's. For the meta
/// device it is only counted.
class PinnedBuffer {
 public:
  /// Throws Error(OutOfMemory), naming bytes and kind.
  PinnedBuffer(std::int64_t bytes, MemoryKind kind, std::shared_ptr<MemoryLedger> ledger,
               c10::Device device);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  /// On meta an address of nothing.
  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  /// The CPU, or meta.
  [[nodiscard]] c10::Device device() const noexcept { return device_; }

 private:
  c10::Device device_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::int64_t bytes_;
  Buffer memory_;
  void* data_;
  std::shared_ptr<void> pinned_;  ///< unpins
};

}  // namespace sherd::detail
