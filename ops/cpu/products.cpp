#include "ops/cpu/products.h"

#include <algorithm>

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/onednn_products.h"

namespace sherd::ops::cpu {
namespace {

constexpr int64_t kMostRows = 384;        // of a block of logits
constexpr int64_t kRowsAsTheyAre = 256;   // fewer are not worth a transposition
constexpr int64_t kOutputsToAnInput = 8;  // what "far above" is

bool is_wide(const at::Tensor& weight) {
  return weight.size(0) >= kOutputsToAnInput * weight.size(1);
}

at::Tensor column_sums(const at::Tensor& matrix) {
  const at::Tensor dense = matrix.contiguous();
  const int64_t width = dense.size(1);
  const ColumnSums sums(width, dense);
  with_dtype(dense, [&](auto type) {
    using T = decltype(type);
    for_rows(dense.size(0), width, [&](int64_t begin, int64_t end) {
      kernels<T>().add_rows(data<T>(dense), sums.of_thread(), width, begin, end);
    });
  });
  return sums.total();
}

void add_to_sum(at::Tensor& sum, const at::Tensor& part) {
  const int64_t width = part.size(1);
  with_dtype(part, [&](auto type) {
    using T = decltype(type);
    for_rows(part.size(0), width, [&](int64_t begin, int64_t end) {
      kernels<T>().add_to_floats(data<T>(part) + begin * width,
                                 mutable_data<float>(sum) + begin * width, (end - begin) * width);
    });
  });
}

}  // namespace

bool multiplies(c10::ScalarType dtype, Isa isa) {
  return dtype == at::kFloat || (dtype == at::kBFloat16 && isa >= Isa::Avx512Bf16);
}

void mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const c10::ScalarType dtype = a.scalar_type();
  if (out.scalar_type() == dtype && dtype == at::kFloat) {
    float_mm(out, a, b);
  } else if (out.scalar_type() == dtype && multiplies(dtype, isa())) {
    at::mm_out(out, a, b);
  } else {
    mm_in_floats(out, /*bias=*/{}, a, b);
  }
}

int64_t mm_room_bytes(c10::ScalarType out, c10::ScalarType in, int64_t m, int64_t k, int64_t n) {
  const bool as_it_is = out == in && multiplies(in, isa());
  return as_it_is ? 0 : room_bytes_in_floats(out != at::kFloat, m, k, n);
}

void addmm(at::Tensor& out, const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    float_addmm(out, bias, a, b);
  } else if (multiplies(a.scalar_type(), isa())) {
    at::addmm_out(out, bias, a, b);
  } else {
    mm_in_floats(out, bias.to(at::kFloat).unsqueeze(0), a, b);
  }
}

void add_mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    float_add_mm(out, a, b);
  } else if (multiplies(a.scalar_type(), isa())) {
    at::addmm_out(out, out, a, b);
  } else if (a.size(1) > 0) {
    mm_in_floats(out, /*bias=*/out, a, b);
  }
}

void head_logits(at::Tensor& logits, const at::Tensor& hidden, const at::Tensor& weight) {
  const int64_t rows = hidden.size(0);
  if (rows <= kMostRows || !is_wide(weight) || !multiplies(hidden.scalar_type(), isa())) {
    mm(logits, hidden, weight.t());
    return;
  }
  const int64_t blocks = (rows + kMostRows - 1) / kMostRows;
  const int64_t block = (rows + blocks - 1) / blocks;
  for (int64_t begin = 0; begin < rows; begin += block) {
    const int64_t end = std::min(begin + block, rows);
    at::Tensor part = logits.slice(0, begin, end);
    mm(part, hidden.slice(0, begin, end), weight.t());
  }
}

void head_input_gradient(at::Tensor& grad_hidden, const at::Tensor& grad_logits,
                         const at::Tensor& weight) {
  const bool as_it_is = grad_logits.size(0) <= kRowsAsTheyAre || !is_wide(weight) ||
                        (weight.scalar_type() == at::kFloat && onednn_is_faster()) ||
                        grad_hidden.scalar_type() != weight.scalar_type() ||
                        !multiplies(weight.scalar_type(), isa());
  if (as_it_is) {
    mm(grad_hidden, grad_logits, weight);
  } else {
    grad_hidden.copy_(at::mm(weight.t(), grad_logits.t()).t());
  }
}

void add_products(Backend& backend) {
  backend.mm = &mm;
  backend.mm_room_bytes = &mm_room_bytes;
  backend.addmm = &addmm;
  backend.add_mm = &add_mm;
  backend.head_logits = &head_logits;
  backend.head_input_gradient = &head_input_gradient;
  backend.column_sums = &column_sums;
  backend.add_to_sum = &add_to_sum;
}

}  // namespace sherd::ops::cpu
