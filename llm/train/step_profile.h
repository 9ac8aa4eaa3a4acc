#pragma once
// How a step's time is spent on the thread that runs it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace llm::train {

/// What the main thread is doing; `Other` is everything outside the rest.
enum class Phase { Gather, Forward, Backward, Reduce, Clip, Optimizer, Wait, Other };
inline constexpr int kPhases = 8;
[[nodiscard]] const char* name_of(Phase phase);

/// Measures exclusive times by LibTorch's own observers, which see the engine's phases, Sherd's
/// operators and LibTorch's: what a nested one takes is not counted for the one around it. Of the
/// thread that built it, from construction to destruction; one at a time a thread.
/// PyTorch: `torch.profiler`, whose observers these are.
class StepProfile {
 public:
  /// How much is observed: phases alone cost nothing that can be measured; operators cost some
  /// microseconds each.
  enum class Detail { Phases, Operators };
  explicit StepProfile(Detail detail);
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;
  ~StepProfile();

  /// The time of one phase, or of one operator within it.
  struct Entry {
    Phase phase = Phase::Other;
    std::string name;
    double seconds = 0;
    std::int64_t calls = 0;
  };
  /// Exclusive times since construction, the longest first.
  [[nodiscard]] std::vector<Entry> entries() const;
  /// The same by the names of the phases.
  [[nodiscard]] std::map<std::string, double> phase_seconds() const;
  /// Called at the end of forward, backward and the optimizer.
  void set_at_phase_end(std::function<void()> callback);

  struct State;

 private:
  std::unique_ptr<State> state_;
  std::uint64_t handle_;
};

}  // namespace llm::train
