#pragma once
// Detects training that makes no progress.

#include <cstdint>
#include <string>

namespace llm::train {

/// Watches each step's loss and gradient norm. Reports each symptom once.
class LossWatch {
 public:
  /// Empty, or a line for people: the gradient is zero, or the loss has not moved.
  /// Not to be called for steps without a supervised token.
  [[nodiscard]] std::string look(std::int64_t step, double loss, double grad_norm);

 private:
  double last_loss_ = 0;
  int steps_still_ = 0;  // in a row, without the loss moving
  bool told_zero_ = false;
  bool told_still_ = false;
};

}  // namespace llm::train
