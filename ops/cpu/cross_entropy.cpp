// Cross-entropy over rows of logits, which become their own gradient.

#include <ATen/ops/empty.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/dispatch.h"

namespace sherd::ops::cpu {
namespace {

void check_targets(const at::Tensor& targets_R, int64_t columns) {
  const int64_t* targets = targets_R.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < targets_R.numel(); ++r) {
    TORCH_CHECK_INDEX(targets[r] >= 0 && targets[r] < columns, "[linear_cross_entropy] target ",
                      targets[r], " of row ", r, " is outside [0, ", columns, ")");
  }
}

CrossEntropy cross_entropy(const at::Tensor& logits_RV, const at::Tensor& targets_R) {
  const int64_t rows = logits_RV.size(0), columns = logits_RV.size(1);
  const at::Tensor targets = targets_R.contiguous();
  if (!targets.is_meta()) {
    check_targets(targets, columns);
  }
  const auto wide = logits_RV.options().dtype(at::kFloat);
  const at::Tensor losses = at::empty({rows}, wide);
  CrossEntropy result{{}, at::empty({rows}, wide)};
  with_dtype(logits_RV, [&](auto type) {
    using T = decltype(type);
    for_rows(rows, columns, [&](int64_t begin, int64_t end) {
      kernels<T>().cross_entropy(data<T>(logits_RV), data<int64_t>(targets), columns,
                                 mutable_data<float>(losses),
                                 mutable_data<float>(result.log_sums_R), begin, end);
    });
  });
  result.loss_sum = losses.sum();
  return result;
}

void cross_entropy_backward(at::Tensor& logits_RV, const at::Tensor& targets_R,
                            const at::Tensor& log_sums_R, const at::Tensor& scale) {
  const int64_t columns = logits_RV.size(1);
  const at::Tensor targets = targets_R.contiguous();
  with_dtype(logits_RV, [&](auto type) {
    using T = decltype(type);
    const auto rows_by = [&](float factor, int64_t begin, int64_t end) {
      kernels<T>().cross_entropy_backward(mutable_data<T>(logits_RV), data<int64_t>(targets),
                                          data<float>(log_sums_R), factor, columns, begin, end);
    };
    const at::Tensor scales = scale.contiguous();
    const float* factors = data<float>(scales);
    for_rows(logits_RV.size(0), columns, [&](int64_t begin, int64_t end) {
      if (scales.dim() == 0) {
        return rows_by(*factors, begin, end);
      }
      for (int64_t row = begin; row < end; ++row) {
        rows_by(factors[row], row, row + 1);
      }
    });
  });
}

}  // namespace

void add_cross_entropy(Backend& backend) {
  backend.cross_entropy = &cross_entropy;
  backend.cross_entropy_backward = &cross_entropy_backward;
}

}  // namespace sherd::ops::cpu
