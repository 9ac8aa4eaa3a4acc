#pragma once

#include "ops/backend.h"

namespace sherd::ops::plain {

/// Every function in LibTorch's own operators, on any device and in any dtype: the reference that
/// other back ends are compared with, and what serves where there is none. Statistics and sums in
/// fp32, or in fp64 for fp64.
[[nodiscard]] Backend plain_backend();

// Its parts, by file.
void add_products(Backend& backend);
void add_dropout(Backend& backend);
void add_attention(Backend& backend);
void add_norms(Backend& backend);
void add_activations(Backend& backend);
void add_cross_entropy(Backend& backend);

}  // namespace sherd::ops::plain
