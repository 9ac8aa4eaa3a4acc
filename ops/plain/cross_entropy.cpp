#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logsumexp.h>

#include "ops/plain/plain_backend.h"
#include "ops/shared/gradient.h"

namespace sherd::ops::plain {
namespace {

CrossEntropy cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor wide = logits.to(statistics_dtype(logits.scalar_type()));
  const at::Tensor log_sums = at::logsumexp(wide, -1);
  const at::Tensor of_targets = wide.gather(1, targets.unsqueeze(1)).squeeze(1);
  return {(log_sums - of_targets).sum(), log_sums};
}

void cross_entropy_backward(at::Tensor& logits, const at::Tensor& targets,
                            const at::Tensor& log_sums, const at::Tensor& scale) {
  at::Tensor gradient = (logits.to(log_sums.scalar_type()) - log_sums.unsqueeze(1)).exp_();
  const at::Tensor columns = targets.unsqueeze(1);
  gradient.scatter_add_(1, columns, at::full_like(columns, -1, gradient.options()));
  logits.copy_(gradient.mul_(scale.dim() == 0 ? scale : scale.unsqueeze(1)));
}

}  // namespace

void add_cross_entropy(Backend& backend) {
  backend.cross_entropy = &cross_entropy;
  backend.cross_entropy_backward = &cross_entropy_backward;
}

}  // namespace sherd::ops::plain
