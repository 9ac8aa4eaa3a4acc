#pragma once
// Streams and events of a device.

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace sherd::detail {

enum class StreamPriority : bool { Normal, High };

/// One of the device's pool. PyTorch: `torch.Stream(device, priority=…)`.
[[nodiscard]] inline c10::Stream side_stream(c10::Device device, StreamPriority priority) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, priority == StreamPriority::High);
}

/// Comes when the device has done what was given to its current stream so far; none for devices
/// without streams.
[[nodiscard]] std::optional<c10::Event> reached_by_current_stream(c10::Device device);

/// One for each direction, since links carry both at once.
class CopyStreams {
 public:
  explicit CopyStreams(c10::Device device);
  /// What the current stream does from then on comes after all copies.
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  [[nodiscard]] const c10::Stream& to_device() const { return to_device_; }
  [[nodiscard]] const c10::Stream& to_host() const { return to_host_; }
  /// The thread's stream on the device: what it computes on.
  [[nodiscard]] c10::Stream current() const;
  /// `later` goes on when `earlier` has come to where it is now.
  static void order(const c10::Stream& earlier, const c10::Stream& later);
  /// Comes when the stream has come to where it is now.
  [[nodiscard]] static c10::Event reached(const c10::Stream& stream);
  /// Copies on a stream; neither tensor may go before that has come to it.
  static void copy(const c10::Stream& stream, const at::Tensor& from, const at::Tensor& to);
  /// The host waits for both.
  void synchronize() const;

 private:
  c10::Device device_;
  c10::Stream to_device_;
  c10::Stream to_host_;
};

}  // namespace sherd::detail
