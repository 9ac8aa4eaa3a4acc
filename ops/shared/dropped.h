#pragma once

#include <ATen/core/Tensor.h>

#include "ops/backend.h"
#include "ops/dropout_mask.h"

namespace sherd::ops {

/// dropout() of a matrix [rows, columns] by the back end, outside autograd.
[[nodiscard]] at::Tensor dropped(const Backend& backend, const at::Tensor& matrix,
                                 const Dropout& dropout);

/// A word is dropped where its upper 53 bits are below this.
[[nodiscard]] inline int64_t dropped_below(double probability) {
  return static_cast<int64_t>(probability * 0x1p53);
}
/// What kept elements are multiplied by.
[[nodiscard]] inline double kept_factor(double probability) {
  return 1 / (1 - probability);
}
/// The step of a SplitMix64 stream from one word to the next.
inline constexpr uint64_t kWordStep = 0x9E3779B97F4A7C15;

}  // namespace sherd::ops
