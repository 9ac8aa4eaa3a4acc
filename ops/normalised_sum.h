#pragma once

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// A residual stream after a block's addition, and what the next one reads of it.
struct NormalisedSum {
  at::Tensor sum;         ///< input + residual, rounded to their dtype
  at::Tensor normalised;  ///< the norm of `sum`
};

}  // namespace sherd::ops
