#pragma once

#include "ops/backend.h"

namespace sherd::ops::cpu {

/// Whether this back end is made for a tensor: fp32, bf16 or fp16 on a CPU, or on the meta device,
/// where it allocates what it does on a CPU and computes nothing.
[[nodiscard]] bool serves(const at::Tensor& tensor);

/// Loops of Sherd's own around matrix products in the form that the processor is best at. What it
/// lacks is `plain`'s.
[[nodiscard]] Backend cpu_backend(const Backend& plain);

// Its parts, by file.
void add_products(Backend& backend);
void add_few_rows(Backend& backend);
void add_dropout(Backend& backend);
void add_quantized(Backend& backend);
void add_attention(Backend& backend);
void add_norms(Backend& backend);
void add_activations(Backend& backend);
void add_cross_entropy(Backend& backend);

}  // namespace sherd::ops::cpu
