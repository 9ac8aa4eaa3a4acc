#pragma once
// Several linear maps of one input as one product.

#include <vector>

#include <ATen/core/Tensor.h>

#include "ops/backend.h"

namespace sherd::ops {

/// Whether maps of `input` are one product: the back end gains by it, and the weights lie side by
/// side in memory. Biases lie between their weights: these are copied side by side where the copy
/// has no more rows than the input. `biases`: none, or one per weight.
[[nodiscard]] bool is_one_product(const at::Tensor& input, at::TensorList weights,
                                  at::TensorList biases);

/// Weights of one product as one matrix [O₁ + O₂ + …, I].
[[nodiscard]] at::Tensor joined_weights(at::TensorList weights);
/// Gradients of the outputs [..., O_i] as one matrix [rows, O₁ + O₂ + …].
[[nodiscard]] at::Tensor joined_gradients(at::TensorList gradients);

/// input [rows, I] · weightᵀ for the joined weights, plus the biases if there are any.
[[nodiscard]] at::Tensor joined_product(const Backend& backend, const at::Tensor& input,
                                        const at::Tensor& weight, at::TensorList biases);
/// The columns of a joined product that belong to each weight, which autograd does not take for
/// views: with the leading sizes of `like`.
[[nodiscard]] std::vector<at::Tensor> columns_of_weights(const at::Tensor& product,
                                                         at::TensorList weights,
                                                         at::IntArrayRef like);
/// All of it where no gradient is wanted: see inference_linear().
[[nodiscard]] std::vector<at::Tensor> joined_inference(const at::Tensor& input,
                                                       at::TensorList weights,
                                                       at::TensorList biases);

}  // namespace sherd::ops
