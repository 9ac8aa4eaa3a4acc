#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace sherd::ops::cpu {

/// Sums of columns that several threads add to: an fp32 row [width] for each.
class ColumnSums {
 public:
  /// On the device of `of`; of nothing where `width` is 0.
  ColumnSums(int64_t width, const at::Tensor& of)
      : rows_(at::zeros({width == 0 ? 0 : at::get_num_threads(), width},
                        of.options().dtype(at::kFloat))) {}
  /// The calling thread's row inside at::parallel_for; null without columns.
  [[nodiscard]] float* of_thread() const {
    return rows_.numel() == 0
               ? nullptr
               : rows_.mutable_data_ptr<float>() + at::get_thread_num() * rows_.size(1);
  }
  /// fp32 [width]
  [[nodiscard]] at::Tensor total() const { return rows_.size(0) == 1 ? rows_[0] : rows_.sum(0); }

 private:
  at::Tensor rows_;
};

}  // namespace sherd::ops::cpu
