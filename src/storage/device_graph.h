#pragma once
// What was given to a device's streams, kept to be done again at once: a graph.

#include <cstdint>
#include <functional>
#include <memory>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace sherd::detail {

/// How a kind of devices keeps work. While a capture is under way, what is given to its stream, and
/// to those that follow it by events, is kept and not done; what waits for the device fails. Each
/// is called by the thread that began.
struct GraphFunctions {
  /// Begins to capture the thread's current stream, which is not the default one. Tensors that are
  /// made meanwhile lie in a pool that graphs share: that of `beside`, where there is one.
  std::shared_ptr<void> (*begin)(const std::shared_ptr<void>& beside) = nullptr;
  /// Ends it. Throws c10::Error for what cannot be a graph.
  void (*end)(void* graph) = nullptr;
  /// Gives all of it to the thread's current stream.
  void (*launch)(void* graph) = nullptr;
  /// The number of the capture that the stream is in; 0 for none.
  std::uint64_t (*capture_of)(const c10::Stream& stream) = nullptr;
};

/// For devices of this kind, from now on; null: they keep nothing. Whoever loads their library
/// calls it. Throws nothing.
void set_graph_functions(c10::DeviceType type, const GraphFunctions* functions);
[[nodiscard]] const GraphFunctions* graph_functions(c10::DeviceType type);

/// The number of the capture that a stream, or the thread's current one of a device, is in; 0 for
/// none. An event is waited for in the capture that it was recorded in, and nowhere else.
[[nodiscard]] std::uint64_t capture_of(const c10::Stream& stream);
[[nodiscard]] std::uint64_t capture_of(c10::Device device);

/// A graph of a device that has graph_functions().
class DeviceGraph {
 public:
  /// Captures what `work` gives to the current stream, which is `stream` meanwhile; that has
  /// nothing else to do. Nothing of it is done. What `work` throws passes, and so does c10::Error
  /// for what cannot be a graph; the capture has ended then. `beside`: one that never runs at the
  /// same time.
  DeviceGraph(const c10::Stream& stream, const DeviceGraph* beside,
              const std::function<void()>& work);
  /// Does it, in the order of the current stream. Addresses are those of the capture.
  void launch() const;

 private:
  const GraphFunctions* functions_;
  std::shared_ptr<void> graph_;
};

}  // namespace sherd::detail
