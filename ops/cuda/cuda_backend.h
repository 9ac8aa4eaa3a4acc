#pragma once

#include "ops/backend.h"

namespace sherd::ops::cuda {

/// Kernels of Sherd's own around LibTorch's products and attention, in fp32, bf16 and fp16, none of
/// which the host waits for. What they are not made for (rows that are not whole packs of 16 bytes,
/// fp64), and what is missing here, is `plain`'s.
[[nodiscard]] Backend cuda_backend(const Backend& plain);

// Its parts, by file.
void add_products(Backend& backend);
void add_attention(Backend& backend);
void add_norms(Backend& backend);
void add_activations(Backend& backend);
void add_cross_entropy(Backend& backend);

}  // namespace sherd::ops::cuda
