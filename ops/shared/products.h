#pragma once

#include <ATen/ops/empty.h>

#include "ops/backend.h"

namespace sherd::ops {

/// a [m, k] · b [k, n] by the back end, in their dtype: [m, n].
inline at::Tensor product_of(const Backend& backend, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  backend.mm(out, a, b);
  return out;
}

}  // namespace sherd::ops
