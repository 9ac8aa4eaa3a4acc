#pragma once
// Streams and events of the fake device. The default stream of a device runs what is issued at
// once, on the thread that issues it; each other one has a thread of its own and takes a random
// while before each operation, so that all legal orders occur.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "tests/fake_device/accesses.h"

namespace sherd::fake {

inline constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;
/// How many fake devices there are.
inline constexpr int kDevices = 4;

/// An end of something issued: what waits for it, and what is known then.
class Moment {
 public:
  [[nodiscard]] bool has_come() const;
  void wait() const;
  /// Seconds of the host's clock at which it came.
  [[nodiscard]] double seconds() const;
  void come();
  Clock clock;
  int stream = 0;
  std::string after;          ///< name of the operation before it
  std::uint64_t capture = 0;  ///< that it is a moment of, by number (captures.h); 0: of the stream
  std::size_t mark = 0;       ///< there

 private:
  struct State;
  std::shared_ptr<State> state_ = make_state();
  static std::shared_ptr<State> make_state();
};

/// Tensors that an operation reads and writes.
struct Touched {
  std::vector<at::Tensor> reads;
  std::vector<at::Tensor> writes;
};

/// The memory of such tensors, wherever they move.
struct TouchedRanges {
  std::vector<Range> reads;
  std::vector<Range> writes;
};
[[nodiscard]] TouchedRanges ranges_of(const Touched& touched);

/// Issues an operation to a stream: notes its accesses, and runs `work` when the stream comes to
/// it.
void issue(const c10::Stream& stream, const std::string& name, const Touched& touched,
           std::function<void()> work);
void issue(const c10::Stream& stream, const std::string& name, const TouchedRanges& touched,
           std::function<void()> work);
/// The same of an operation that a graph repeats: it is no launch of the host's.
void repeat(const c10::Stream& stream, const std::string& name, const TouchedRanges& touched,
            std::function<void()> work);
/// What has been issued to the stream so far has ended when this has come.
[[nodiscard]] Moment record(const c10::Stream& stream);
/// What is issued to the stream from now on waits for it. One that is lost (lose_wait()) does not.
void block(const c10::Stream& stream, const Moment& moment);
/// The same in a graph: never lost.
void wait_for(const c10::Stream& stream, const Moment& moment);
/// The same for all that another was given so far, never lost: a wait that is not the engine's, of
/// a stream that works on the other's behalf.
void follow(const c10::Stream& stream, const c10::Stream& followed);
/// The host waits for all that was issued to the stream; counted.
void synchronize(const c10::Stream& stream, const std::string& why);
/// The host waits for what was issued before the moment; counted.
void synchronize(c10::DeviceIndex index, const Moment& moment, const std::string& why);
/// The host waits, uncounted: not a wait that a GPU would have.
void drain(const c10::Stream& stream);

class Capture;  // captures.h
/// From now on what the stream, and those that wait for it, are given is kept in it. The device has
/// nothing left to do.
void begin_capture(const c10::Stream& stream, const std::shared_ptr<Capture>& capture);
/// Streams do again what they are given.
void end_capture(c10::DeviceIndex index);
/// What the stream is captured in; null for nothing.
[[nodiscard]] std::shared_ptr<Capture> capture_with(const c10::Stream& stream);
/// Throws, naming what it does, where the stream is captured: as CUDA for what a graph cannot hold.
void refuse_captured(const c10::Stream& stream, const std::string& what);

/// A stream of a device with a thread of its own, from a few that are given out in turns.
[[nodiscard]] c10::Stream pool_stream(c10::Device device);
/// A stream of a device with a thread of its own, which nobody else has until it is given back.
[[nodiscard]] c10::Stream take_stream(c10::Device device);
void give_back_stream(const c10::Stream& stream);
[[nodiscard]] c10::Stream default_stream(c10::Device device);
/// The calling thread's, of a device.
[[nodiscard]] c10::Stream current_stream(c10::Device device);
c10::Stream exchange_stream(const c10::Stream& stream);
/// The calling thread's device.
[[nodiscard]] c10::DeviceIndex current_device();
void set_device(c10::DeviceIndex index);

/// Memory is allocated while `stream` is the current one: what others do there comes after that.
void take_memory(void* data, std::size_t bytes, const c10::Stream& stream);
/// Memory that was allocated while `stream` was the current one is given back: the next that is
/// allocated there gets it, as from CUDA's caching allocator.
void forget_memory(void* data, std::size_t bytes, const c10::Stream& stream);

/// Pinned memory of the host is given back.
void forget_host_memory(const void* data, std::size_t bytes);

// For tests.

/// The host waits, uncounted, until nothing is left to do on a device.
void finish(c10::DeviceIndex index);

/// A device has so much memory for tensors that the allocator makes; 0 for any amount.
void set_memory_limit(std::size_t bytes);
/// What memory of the host can be pinned, a buffer; 0 for any amount.
void set_pinned_limit(std::size_t bytes);
/// Of the random delays; 0 for none.
void set_seed(std::uint64_t seed);
/// See Accesses.
void note_fault(std::string description);
[[nodiscard]] std::vector<std::string> take_faults();
/// Why a device made the host wait, since the last call.
[[nodiscard]] std::vector<std::string> take_host_waits(c10::DeviceIndex index);
/// What the host gave to a device, since the last call: operations, and launches of graphs.
[[nodiscard]] int take_launches(c10::DeviceIndex index);
void count_launch(c10::DeviceIndex index);
/// The `number`th wait between streams of a device from now on is left out; −1 for none.
void lose_wait(c10::DeviceIndex index, int number);
/// One stream waits for what another was given before.
struct Wait {
  int stream = 0;
  int waits_for = 0;
  std::string after;         ///< the other's last operation
  bool orders = false;       ///< something that no wait before it ordered
  std::uint64_t given = 0;   ///< to the waiting stream before it: operations, also on its behalf
  std::uint64_t behind = 0;  ///< operations that the other was given by then and is not waited for
};
/// The waits between streams of a device since then.
[[nodiscard]] std::vector<Wait> waits(c10::DeviceIndex index);

}  // namespace sherd::fake
