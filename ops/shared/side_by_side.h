#pragma once
// Matrices that lie side by side in memory as the one that they make up.

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// Matrices [n, columns], each behind the one before it, as [sum of n, columns]: a view. Undefined
/// where they do not lie so in one storage.
[[nodiscard]] at::Tensor joined_rows(at::TensorList matrices);
/// Matrices [rows, n], the rows of each behind those of the one before it, as [rows, sum of n].
[[nodiscard]] at::Tensor joined_columns(at::TensorList matrices);

}  // namespace sherd::ops
