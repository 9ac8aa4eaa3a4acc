#pragma once
// Steps that no checkpoint holds yet.

#include <atomic>
#include <cstdint>
#include <string>

namespace llm::train {

/// Kept by the training loop for those who end a run: how many steps are done, and how many a
/// checkpoint holds. Any thread may read it.
class UnsavedSteps {
 public:
  void set_done(std::int64_t step) { done_ = step; }
  void set_saved(std::int64_t step) { saved_ = step; }
  /// "step 13", "steps 13 to 17"; empty if all steps are in a checkpoint.
  [[nodiscard]] std::string text() const {
    const std::int64_t done = done_;
    const std::int64_t first = saved_ + 1;
    return first > done    ? ""
           : first == done ? "step " + std::to_string(done)
                           : "steps " + std::to_string(first) + " to " + std::to_string(done);
  }

 private:
  std::atomic<std::int64_t> done_ = 0;
  std::atomic<std::int64_t> saved_ = 0;
};

}  // namespace llm::train
