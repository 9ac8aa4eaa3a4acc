#pragma once
// How many bytes a computation on the meta device would hold, and for what.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "llm/plan/device.h"

namespace llm::plan {

/// The item of what a pooling allocator holds beside what is in use.
inline constexpr const char* kKeptItem = "freed, kept for the next step";

/// While it lives, counts what this thread's tensors on the meta device take: nothing is allocated,
/// but the shapes are those of a real computation, and so are the moments at which they come and
/// go. One at a time. PyTorch: `FSDPMemTracker`.
class MetaMeter {
 public:
  /// Bytes by what asked for them, under the names that LibTorch's profilers see: the innermost of
  /// Sherd's operators and of the engine's kinds of buffers, else the outermost operator of
  /// LibTorch's.
  using Items = std::map<std::string, std::int64_t>;

  /// With `pooling`, what an allocator has taken and keeps is held too, as an item of its own, and
  /// so is what it rounds up.
  explicit MetaMeter(const Pooling& pooling = {});
  ~MetaMeter();
  MetaMeter(const MetaMeter&) = delete;
  MetaMeter& operator=(const MetaMeter&) = delete;

  [[nodiscard]] std::int64_t held_bytes() const;
  /// What is held now, item by item.
  [[nodiscard]] const Items& held() const;
  /// The most that was held since construction or reset_peak(), and what was held then.
  [[nodiscard]] std::int64_t peak_bytes() const;
  [[nodiscard]] const Items& at_peak() const;
  void reset_peak();
  /// Runs `work`, of which only what it leaves behind counts.
  void without_peaks(const std::function<void()>& work);
  /// Runs `work`, whose tensors lie in segments of their own, as a CUDA graph's do; the engine's
  /// buffers do not. Returns what these segments take.
  [[nodiscard]] std::int64_t apart(const std::function<void()>& work);

  struct State;

 private:
  std::shared_ptr<State> state_;
  std::uint64_t observer_;
};

}  // namespace llm::plan
