#pragma once
// Products with the weight of a linear map, as operators read it: a matrix, or rows of Q8_0 blocks,
// which are dequantized by tiles.

#include <ATen/core/Tensor.h>

#include "ops/backend.h"

namespace sherd::ops {

/// Outputs O of a weight [O, I] of any strides, quantized or not.
[[nodiscard]] int64_t outputs_of(const at::Tensor& weight);

/// The weight as profilers see it, [O, I]: of a quantized one a view with these sizes alone.
[[nodiscard]] at::Tensor recorded_weight(const at::Tensor& weight);

/// out [T, O] = input [T, I] · weightᵀ, plus bias [O] where it is defined. Memory: with a quantized
/// weight a tile of Backend::dequantized_numbers.
void write_weight_product(const Backend& backend, at::Tensor& out, const at::Tensor& input,
                          const at::Tensor& weight, const at::Tensor& bias = {});
/// The same in a new tensor.
[[nodiscard]] at::Tensor weight_product(const Backend& backend, const at::Tensor& input,
                                        const at::Tensor& weight, const at::Tensor& bias = {});

/// grad_output [T, O] · weight -> [T, I]. Memory: as weight_product().
[[nodiscard]] at::Tensor input_gradient(const Backend& backend, const at::Tensor& grad_output,
                                        const at::Tensor& weight);

}  // namespace sherd::ops
