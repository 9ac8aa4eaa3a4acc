#pragma once
// Graphs of the fake device: what streams were given while they were captured, to be done again.
// Model: CUDA's stream capture.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/storage/device.h"
#include "tests/fake_device/streams.h"

namespace sherd::fake {

/// Of one device. Operations of different streams that no wait orders run in any order, each of
/// these streams on a thread of its own. Memory that was allocated in the capture is not used again
/// in it.
class Capture {
 public:
  explicit Capture(const c10::Stream& origin);
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture();

  /// From 1 on.
  [[nodiscard]] std::uint64_t number() const { return number_; }
  void add(const c10::Stream& stream, const std::string& name, TouchedRanges touched,
           std::function<void()> work);
  void record(const c10::Stream& stream, Moment& moment);
  /// Whether a wait would order something.
  [[nodiscard]] bool orders(const c10::Stream& stream, const Moment& moment) const;
  void wait(const c10::Stream& stream, const Moment& moment);

  /// Memory was allocated meanwhile: nobody else has it.
  void own(const Range& range) { owned_.push_back(range); }
  [[nodiscard]] bool owns(const TouchedRanges& touched) const;

  /// Throws where a stream has something that the first one does not wait for.
  void end();
  /// Does all of it, the first stream's on `stream`.
  void launch(const c10::Stream& stream);

 private:
  struct Lane {
    c10::Stream captured;
    Clock clock;  ///< by lane
    c10::Stream runs_on;
  };
  struct Node {
    std::size_t lane = 0;
    std::string name = {};
    TouchedRanges touched = {};
    std::function<void()> work = {};  ///< none: a moment
    std::size_t mark = 0;
    bool waits = false;  ///< for the moment; else that comes
  };
  [[nodiscard]] std::size_t lane_of(const c10::Stream& stream);

  std::uint64_t number_;
  std::vector<Lane> lanes_;
  std::vector<Node> nodes_;
  std::vector<Range> owned_;
  std::size_t marks_ = 0;
  c10::Stream launched_on_;
};

/// Those of the fake device, without its pinning.
[[nodiscard]] detail::DeviceFunctions capture_functions();

}  // namespace sherd::fake
