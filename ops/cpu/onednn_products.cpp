#include "ops/cpu/onednn_products.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "ops/cpu/vector_sets.h"

// LibTorch exports it without a header. Its operators for fp32 matrices on the CPU take MKL, unless
// they may round the operands.
namespace at::native {
TORCH_API void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& out, float beta,
                             float alpha);
}  // namespace at::native

namespace sherd::ops::cpu {
namespace {

constexpr int64_t kFewRows = 64;  // for which oneDNN's product with a transposed weight is slow

bool is_transposed(const at::Tensor& out) {
  return out.stride(-1) != 1 && out.stride(-2) == 1;
}

// out = beta × out + a · b
void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, float beta) {
  if (is_transposed(out)) {
    at::native::mkldnn_matmul(b.transpose(-1, -2), a.transpose(-1, -2), out.transpose(-1, -2), beta,
                              /*alpha=*/1);
  } else {
    at::native::mkldnn_matmul(a, b, out, beta, /*alpha=*/1);
  }
}

// Not with gaps between rows, nor between matrices of a batch: what oneDNN's products are fast for.
at::Tensor dense(const at::Tensor& matrices) {
  const bool is_dense = matrices.is_contiguous() || matrices.transpose(-1, -2).is_contiguous();
  return is_dense ? matrices : matrices.contiguous();
}

bool is_for_onednn(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const bool has_dense_side = out.stride(0) == 1 || out.stride(1) == 1;
  return a.size(0) >= kFewRows && a.size(1) > 0 && b.size(1) > 0 && has_dense_side && a.is_cpu() &&
         onednn_is_faster();
}

}  // namespace

bool onednn_multiplies_floats(Isa isa) {
  static const bool is_allowed = allowed_isa() >= Isa::Avx512;
  return isa >= Isa::Avx512 && is_allowed;
}

bool onednn_is_faster() {
  return onednn_multiplies_floats(isa()) && !has_fastest_mkl();
}

void onednn_mm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  multiply(out, a, b, /*beta=*/0);
}

void float_mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (is_for_onednn(out, a, b)) {
    onednn_mm(out, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

void float_addmm(at::Tensor& out, const at::Tensor& bias, const at::Tensor& a,
                 const at::Tensor& b) {
  if (is_for_onednn(out, a, b)) {
    out.copy_(bias);
    multiply(out, a, b, /*beta=*/1);
  } else {
    at::addmm_out(out, bias, a, b);
  }
}

void float_add_mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (is_for_onednn(out, a, b)) {
    multiply(out, a, b, /*beta=*/1);
  } else {
    at::addmm_out(out, out, a, b);
  }
}

void bmm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const bool is_empty = a.numel() == 0 || b.numel() == 0;
  if (a.scalar_type() != at::kFloat || is_empty || !onednn_is_faster()) {
    at::bmm_out(out, a, b);
    return;
  }
  const at::Tensor left = dense(a), right = dense(b);
  if (out.is_cpu()) {
    onednn_mm(out, left, right);
  } else {
    at::bmm_out(out, left, right);  // of the meta device: what it allocates is what the CPU does
  }
}

}  // namespace sherd::ops::cpu
