#include "ops/shared/side_by_side.h"

#include <algorithm>
#include <vector>

#include <ATen/TensorOperators.h>

namespace sherd::ops {
namespace {

// Whether a matrix begins in memory where the one before it has its last value of that dimension.
bool follows(const at::Tensor& matrix, const at::Tensor& before, int64_t dim) {
  const int64_t end = before.storage_offset() + before.size(dim) * before.stride(dim);
  return matrix.is_alias_of(before) && matrix.scalar_type() == before.scalar_type() &&
         matrix.storage_offset() == end && matrix.strides() == before.strides() &&
         matrix.size(1 - dim) == before.size(1 - dim);
}

// Along a dimension.
at::Tensor joined(at::TensorList matrices, int64_t dim) {
  int64_t size = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (i > 0 && !follows(matrices[i], matrices[i - 1], dim)) {
      return {};
    }
    size += matrices[i].size(dim);
  }
  std::vector<int64_t> sizes = matrices.front().sizes().vec();
  sizes[static_cast<size_t>(dim)] = size;
  return matrices.front().as_strided(sizes, matrices.front().strides());
}

}  // namespace

at::Tensor joined_rows(at::TensorList matrices) {
  const bool are_dense = std::all_of(matrices.begin(), matrices.end(), [](const auto& matrix) {
    return matrix.dim() == 2 && matrix.is_contiguous();
  });
  return are_dense ? joined(matrices, 0) : at::Tensor();
}

at::Tensor joined_columns(at::TensorList matrices) {
  const bool have_rows = std::all_of(matrices.begin(), matrices.end(), [](const auto& matrix) {
    return matrix.dim() == 2 && matrix.stride(1) == 1;
  });
  return have_rows ? joined(matrices, 1) : at::Tensor();
}

}  // namespace sherd::ops
