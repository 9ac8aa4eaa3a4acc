#include "ops/shared/weight_products.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "ops/q8_0.h"

namespace sherd::ops {
namespace {

// Whether a quantized weight is the transpose of the matrix whose rows are blocks: GPT-2's.
bool is_transposed(const at::Tensor& weight) {
  return weight.stride(1) != 1;
}

void multiply(const Backend& backend, at::Tensor& out, const at::Tensor& bias, const at::Tensor& a,
              const at::Tensor& b) {
  if (bias.defined()) {
    backend.addmm(out, bias, a, b);
  } else {
    backend.mm(out, a, b);
  }
}

// Into how much a dimension is cut, if a step of it has `other` numbers: tiles of about one size.
int64_t tile_of(const Backend& backend, int64_t length, int64_t other, int64_t unit) {
  const int64_t most =
      std::max(unit, backend.dequantized_numbers / std::max<int64_t>(1, other) / unit * unit);
  const int64_t tiles = std::max<int64_t>(1, (length + most - 1) / most);
  return ((length + tiles - 1) / tiles + unit - 1) / unit * unit;
}

// Calls `use(begin, part)` for the parts [..., count] of `out` that tiles compute.
template <class Use>
void for_tiles(const at::Tensor& out, const at::Tensor& bias, int64_t tile, const Use& use) {
  for (int64_t begin = 0; begin < out.size(1); begin += tile) {
    const int64_t count = std::min(tile, out.size(1) - begin);
    at::Tensor part = out.narrow(1, begin, count);
    use(begin, part, bias.defined() ? bias.narrow(0, begin, count) : bias);
  }
}

// out [T, R] = a [T, C] · matrixᵀ, of a matrix [R, C] in blocks: by tiles of its rows.
void times_transposed(const Backend& backend, const at::Tensor& out, const at::Tensor& bias,
                      const at::Tensor& a, const at::Tensor& blocks) {
  const int64_t columns = q8_0::columns_of(blocks);
  const int64_t tile = tile_of(backend, blocks.size(0), columns, 1);
  const at::Tensor room = at::empty({tile, columns}, a.options());
  for_tiles(out, bias, tile, [&](int64_t begin, at::Tensor& part, const at::Tensor& its_bias) {
    at::Tensor matrix = room.narrow(0, 0, part.size(1));
    backend.dequantize(matrix, blocks.narrow(0, begin, part.size(1)));
    multiply(backend, part, its_bias, a, matrix.t());
  });
}

// out [T, C] = a [T, R] · matrix, of a matrix [R, C] in blocks: by tiles of its columns, so that
// each output is one sum.
void times(const Backend& backend, const at::Tensor& out, const at::Tensor& bias,
           const at::Tensor& a, const at::Tensor& blocks) {
  const int64_t rows = blocks.size(0);
  const int64_t tile = tile_of(backend, q8_0::columns_of(blocks), rows, q8_0::kBlockNumbers);
  const at::Tensor room = at::empty({rows * tile}, a.options());
  for_tiles(out, bias, tile, [&](int64_t begin, at::Tensor& part, const at::Tensor& its_bias) {
    at::Tensor matrix = room.narrow(0, 0, rows * part.size(1)).view({rows, part.size(1)});
    backend.dequantize(matrix,
                       blocks.narrow(1, q8_0::row_bytes(begin), q8_0::row_bytes(part.size(1))));
    multiply(backend, part, its_bias, a, matrix);
  });
}

// Inputs I of a weight [O, I].
int64_t inputs_of(const at::Tensor& weight) {
  return q8_0::is_quantized(weight) && is_transposed(weight) ? weight.size(1)
                                                             : q8_0::columns_of(weight);
}

}  // namespace

int64_t outputs_of(const at::Tensor& weight) {
  return q8_0::is_quantized(weight) && is_transposed(weight) ? q8_0::row_numbers(weight.size(0))
                                                             : weight.size(0);
}

at::Tensor recorded_weight(const at::Tensor& weight) {
  if (!q8_0::is_quantized(weight)) {
    return weight;
  }
  return weight.as_strided({outputs_of(weight), inputs_of(weight)}, {0, 0});
}

void write_weight_product(const Backend& backend, at::Tensor& out, const at::Tensor& input,
                          const at::Tensor& weight, const at::Tensor& bias) {
  if (!q8_0::is_quantized(weight)) {
    multiply(backend, out, bias, input, weight.t());
  } else if (is_transposed(weight)) {
    times(backend, out, bias, input, weight.t());
  } else {
    times_transposed(backend, out, bias, input, weight);
  }
}

at::Tensor weight_product(const Backend& backend, const at::Tensor& input, const at::Tensor& weight,
                          const at::Tensor& bias) {
  at::Tensor out = at::empty({input.size(0), outputs_of(weight)}, input.options());
  write_weight_product(backend, out, input, weight, bias);
  return out;
}

at::Tensor input_gradient(const Backend& backend, const at::Tensor& grad_output,
                          const at::Tensor& weight) {
  at::Tensor out = at::empty({grad_output.size(0), inputs_of(weight)}, grad_output.options());
  if (!q8_0::is_quantized(weight)) {
    backend.mm(out, grad_output, weight);
  } else if (is_transposed(weight)) {
    times_transposed(backend, out, {}, grad_output, weight.t());
  } else {
    times(backend, out, {}, grad_output, weight);
  }
  return out;
}

}  // namespace sherd::ops
