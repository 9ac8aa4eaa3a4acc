// Cross-entropy over rows of logits, which become their own gradient.

#include <ATen/ops/empty.h>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/plain_uses.h"

namespace sherd::ops::cuda {
namespace {

bool serves(const at::Tensor& logits) {
  return are_packed({logits}) && fits_packs(logits, logits.size(1));
}

LogitRows<void> rows_of(const at::Tensor& logits, const at::Tensor& targets,
                        const at::Tensor& losses, const at::Tensor& log_sums) {
  return {.logits = mutable_data(logits),
          .targets = targets.const_data_ptr<int64_t>(),
          .losses = mutable_data<float>(losses),
          .log_sums = mutable_data<float>(log_sums),
          .rows = logits.size(0),
          .vocabulary = logits.size(1)};
}

CrossEntropy cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  if (!serves(logits)) {
    note_plain_use("cross_entropy", reason_of(logits, logits.size(1)));
    return plain_backend().cross_entropy(logits, targets);
  }
  const auto wide = logits.options().dtype(at::kFloat);
  const at::Tensor losses = at::empty({logits.size(0)}, wide);
  const at::Tensor log_sums = at::empty({logits.size(0)}, wide);
  const at::Tensor dense_targets = targets.contiguous();
  on_device_of(logits, [&](StreamHandle stream) {
    launch_cross_entropy(dtype_of(logits), stream,
                         rows_of(logits, dense_targets, losses, log_sums));
  });
  return {losses.sum(), log_sums};
}

void cross_entropy_backward(at::Tensor& logits, const at::Tensor& targets,
                            const at::Tensor& log_sums, const at::Tensor& scale) {
  if (!serves(logits)) {
    note_plain_use("cross_entropy_backward", reason_of(logits, logits.size(1)));
    plain_backend().cross_entropy_backward(logits, targets, log_sums, scale);
    return;
  }
  const at::Tensor dense_targets = targets.contiguous(), scales = scale.contiguous();
  LogitRows<void> rows = rows_of(logits, dense_targets, /*losses=*/{}, log_sums);
  rows.scale_stride = scales.dim() == 0 ? 0 : 1;
  on_device_of(logits, [&](StreamHandle stream) {
    launch_cross_entropy_backward(dtype_of(logits), stream, rows, scales.const_data_ptr<float>());
  });
}

}  // namespace

void add_cross_entropy(Backend& backend) {
  backend.cross_entropy = &cross_entropy;
  backend.cross_entropy_backward = &cross_entropy_backward;
}

}  // namespace sherd::ops::cuda
