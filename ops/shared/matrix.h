#pragma once
// Tensors with any number of leading dimensions as the matrices that products work on.

#include <vector>

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// [..., columns] -> [rows, columns]: a view where the strides allow it.
inline at::Tensor as_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2 ? tensor : tensor.reshape({-1, tensor.size(-1)});
}

/// A matrix with the leading sizes of `like`: [..., columns].
inline at::Tensor with_leading_sizes(const at::Tensor& matrix, at::IntArrayRef like) {
  if (like.size() == 2) {
    return matrix;
  }
  std::vector<int64_t> shape(like.begin(), like.end());
  shape.back() = matrix.size(1);
  return matrix.view(shape);
}

}  // namespace sherd::ops
