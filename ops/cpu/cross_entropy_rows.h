#pragma once
// Cross-entropy over rows of logits, which become their own gradient.

#include <ATen/core/Tensor.h>

namespace sherd::ops::cpu {

struct CrossEntropy {
  at::Tensor loss_sum;    ///< fp32 scalar
  at::Tensor log_sums_R;  ///< fp32 [R]: of each row's exponentials
};

/// Shapes: logits [R, V] of a dtype that serves() accepts, contiguous; targets int64 [R].
/// Throws c10::Error for a target outside [0, V).
[[nodiscard]] CrossEntropy cross_entropy(const at::Tensor& logits_RV, const at::Tensor& targets_R);

/// Turns the logits into their gradient, (softmax − one-hot target) × scale.
void cross_entropy_backward(const at::Tensor& logits_RV, const at::Tensor& targets_R,
                            const at::Tensor& log_sums_R, float scale);

}  // namespace sherd::ops::cpu
