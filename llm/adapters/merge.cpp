#include "llm/adapters/merge.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>

namespace llm::adapters {

at::Tensor merged_weight(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                         double scale, bool is_transposed) {
  const at::NoGradGuard no_grad;
  const at::Tensor change = at::mm(b, a).mul_(scale);
  return weight + (is_transposed ? change.t() : change);
}

}  // namespace llm::adapters
