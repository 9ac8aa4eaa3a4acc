#include "ops/shared/joined_linears.h"

#include <algorithm>
#include <optional>

#include <ATen/ops/cat.h>
#include <ATen/ops/unsafe_split_with_sizes.h>

#include "ops/q8_0.h"
#include "ops/shared/inference_linear.h"
#include "ops/shared/matrix.h"
#include "ops/shared/side_by_side.h"
#include "ops/shared/weight_products.h"

namespace sherd::ops {
namespace {

bool all_like_first(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.requires_grad() == tensors.front().requires_grad();
  });
}

at::Tensor joined_or_copied(const at::Tensor& joined, at::TensorList parts, int64_t dim) {
  return joined.defined() ? joined : at::cat(parts, dim);
}

}  // namespace

bool is_one_product(const at::Tensor& input, at::TensorList weights, at::TensorList biases) {
  if (!backend_of(input).joins_products || !all_like_first(weights) || !all_like_first(biases)) {
    return false;
  }
  int64_t outputs = 0;
  for (const at::Tensor& weight : weights) {
    if (q8_0::is_quantized(weight) && !weight.is_contiguous()) {
      return false;  // joined, transposed blocks would pass for rows
    }
    outputs += outputs_of(weight);
  }
  return joined_rows(weights).defined() ||
         (!biases.empty() && outputs <= input.numel() / std::max<int64_t>(1, input.size(-1)));
}

at::Tensor joined_weights(at::TensorList weights) {
  return joined_or_copied(joined_rows(weights), weights, 0);
}

at::Tensor joined_gradients(at::TensorList gradients) {
  std::vector<at::Tensor> matrices(gradients.size());
  std::transform(gradients.begin(), gradients.end(), matrices.begin(), as_matrix);
  return joined_or_copied(joined_columns(matrices), matrices, 1);
}

at::Tensor joined_product(const Backend& backend, const at::Tensor& input, const at::Tensor& weight,
                          at::TensorList biases) {
  return weight_product(backend, input, weight, biases.empty() ? at::Tensor() : at::cat(biases));
}

std::vector<at::Tensor> columns_of_weights(const at::Tensor& product, at::TensorList weights,
                                           at::IntArrayRef like) {
  std::vector<int64_t> widths;
  for (const at::Tensor& weight : weights) {
    widths.push_back(outputs_of(weight));
  }
  std::vector<at::Tensor> outputs = at::unsafe_split_with_sizes(product, widths, 1);
  for (at::Tensor& output : outputs) {
    output = with_leading_sizes(output, like);
  }
  return outputs;
}

std::vector<at::Tensor> joined_inference(const at::Tensor& input, at::TensorList weights,
                                         at::TensorList biases) {
  const auto bias = biases.empty() ? std::nullopt : std::optional(at::cat(biases));
  return columns_of_weights(as_matrix(inference_linear(input, joined_weights(weights), bias)),
                            weights, input.sizes());
}

}  // namespace sherd::ops
