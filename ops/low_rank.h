#pragma once
// The low-rank update of a linear map.

#include <ATen/core/Tensor.h>

#include "ops/dropout_mask.h"

namespace sherd::ops {

/// scale · dropout(x) · Aᵀ · Bᵀ, added to what a linear map makes of x.  Paper: LoRA,
/// arXiv:2106.09685.
struct LowRank {
  at::Tensor A = {};  ///< [r, I]; undefined: there is no update
  at::Tensor B = {};  ///< [O, r]
  double scale = 1;
  Dropout dropout = {};  ///< of x

  /// Whether there is an update.
  [[nodiscard]] explicit operator bool() const { return A.defined(); }
};

}  // namespace sherd::ops
