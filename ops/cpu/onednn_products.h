#pragma once
// Products of fp32 matrices by oneDNN, beside LibTorch's own, which are MKL's.

#include <ATen/core/Tensor.h>

#include "ops/cpu/isa.h"

namespace sherd::ops::cpu {

/// Whether onednn_mm() works on a path, and in this process: LibTorch's way to it asks for AVX-512.
[[nodiscard]] bool onednn_multiplies_floats(Isa isa);

/// Whether it is the faster one on the path in use: MKL has its AVX-512 products for Intel's
/// processors alone, and takes those for AVX2 on others (benchmarks/float_products.cpp).
[[nodiscard]] bool onednn_is_faster();

/// out = a · b by oneDNN, all fp32: [m, k] · [k, n], or [M, m, k] · [M, k, n]. Operands may be
/// transposed; LibTorch copies those with gaps between rows. `out` has dense rows or is a
/// transposed matrix that has. No size may be 0.
void onednn_mm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

/// out = a · b in fp32 by the faster of the two. `out` has the product's sizes.
void float_mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

/// out = bias [n] + a · b in fp32 by the faster of the two.
void float_addmm(at::Tensor& out, const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b);

/// out += a · b in fp32 by the faster of the two.
void float_add_mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

/// The same as float_mm() of batches, in fp32 or in bf16 where the path multiplies it.
void bmm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

}  // namespace sherd::ops::cpu
