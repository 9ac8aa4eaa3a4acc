#pragma once
// Sums over rows that blocks have taken in parts.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace sherd::ops::cuda {

/// Room for parts: fp32 [count, columns] on the device of `like`; undefined where not wanted.
[[nodiscard]] inline at::Tensor room_for_parts(bool is_wanted, int64_t count, int64_t columns,
                                               const at::Tensor& like) {
  return is_wanted ? at::empty({count, columns}, like.options().dtype(at::kFloat)) : at::Tensor();
}

/// fp32 [columns]: the sum of rows [rows, columns] that are_packed() takes, `columns` fitting
/// packs. The order of the sum does not depend on the device.
[[nodiscard]] at::Tensor sum_of_rows(const at::Tensor& matrix);

/// sum_of_rows(), undefined for an undefined matrix.
[[nodiscard]] inline at::Tensor sum_of_parts(const at::Tensor& parts) {
  return parts.defined() ? sum_of_rows(parts) : at::Tensor();
}

}  // namespace sherd::ops::cuda
