// Matrix products and sums over rows.

#include <ATen/TensorOperators.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "ops/plain/plain_backend.h"
#include "ops/q8_0.h"
#include "ops/shared/gradient.h"

namespace sherd::ops::plain {
namespace {

void mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (out.scalar_type() == a.scalar_type()) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a.to(out.scalar_type()), b.to(out.scalar_type()));
  }
}

int64_t mm_room_bytes(c10::ScalarType out, c10::ScalarType in, int64_t m, int64_t k, int64_t n) {
  return out == in ? 0 : (m + n) * k * static_cast<int64_t>(c10::elementSize(out));
}

void addmm(at::Tensor& out, const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b) {
  at::addmm_out(out, bias, a, b);
}

void add_mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  at::addmm_out(out, out, a, b);
}

void head_logits(at::Tensor& logits, const at::Tensor& hidden, const at::Tensor& weight) {
  mm(logits, hidden, weight.t());
}

at::Tensor column_sums(const at::Tensor& matrix) {
  return matrix.sum(0, /*keepdim=*/false, statistics_dtype(matrix.scalar_type()));
}

void add_to_sum(at::Tensor& sum, const at::Tensor& part) {
  sum.add_(part);
}

// What add_embedding_gradient() takes where all ids differ, which is the most.
void take_room_of_embedding_gradient(const at::Tensor& out, const at::Tensor& gradient) {
  const auto wide = statistics_dtype(out.scalar_type());
  const at::Tensor sums = at::zeros(gradient.sizes(), out.options().dtype(wide));
  static_cast<void>(gradient.to(wide));
  static_cast<void>(at::empty(gradient.sizes(), out.options()).to(wide));
  static_cast<void>(sums.to(out.scalar_type()));
}

void add_embedding_gradient(at::Tensor& out, const at::Tensor& ids, const at::Tensor& gradient) {
  if (out.is_meta()) {
    take_room_of_embedding_gradient(out, gradient);
    return;
  }
  const auto [rows, place] = at::_unique(ids, /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor sums = at::zeros({rows.numel(), out.size(1)},
                                    out.options().dtype(statistics_dtype(out.scalar_type())));
  sums.index_add_(0, place, gradient.to(sums.scalar_type()));
  sums.add_(out.index_select(0, rows));
  out.index_copy_(0, rows, sums.to(out.scalar_type()));
}

constexpr int64_t kDequantizedNumbers = int64_t{1} << 26;

void dequantize(at::Tensor& out, const at::Tensor& blocks) {
  const int64_t rows = out.size(0), count = out.size(1) / q8_0::kBlockNumbers;
  const at::Tensor parts = blocks.unflatten(1, {count, q8_0::kBlockBytes});
  const at::Tensor scales = parts.narrow(2, 0, 2).contiguous().view(at::kHalf).to(at::kFloat);
  const at::Tensor codes = parts.narrow(2, 2, q8_0::kBlockNumbers).view(at::kChar);
  out.view({rows, count, q8_0::kBlockNumbers}).copy_(codes.to(at::kFloat) * scales);
}

int64_t few_rows() {
  return 0;
}

}  // namespace

void add_products(Backend& backend) {
  backend.mm = &mm;
  backend.mm_room_bytes = &mm_room_bytes;
  backend.addmm = &addmm;
  backend.add_mm = &add_mm;
  backend.few_rows = &few_rows;
  backend.dequantize = &dequantize;
  backend.dequantized_numbers = kDequantizedNumbers;
  backend.head_logits = &head_logits;
  backend.head_input_gradient = &mm;
  backend.column_sums = &column_sums;
  backend.add_to_sum = &add_to_sum;
  backend.add_embedding_gradient = &add_embedding_gradient;
}

}  // namespace sherd::ops::plain
