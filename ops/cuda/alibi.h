#pragma once
// ALiBi for attention that knows no bias: in columns that heads grow by (kernels/alibi.cuh).

#include "ops/backend.h"
#include "ops/fused_attention.h"

namespace sherd::ops::cuda {

/// Whether the columns hold the bias of these, which are of 16 bits, in whole packs and aligned:
/// documents of up to 32768 tokens.
[[nodiscard]] bool serves_alibi_columns(const AttentionInputs& inputs);

/// Inputs without slopes whose attention, with the scale of `inputs`, is that of `inputs`: query
/// [T, N, H + 8], key and value [T, K, H + 8]. In exact arithmetic the bias differs from slope ×
/// position by 2⁻²² of it at most, for slopes of 2⁻⁸ and more. `document_offsets`: int32 [documents
/// + 1] on the device.
[[nodiscard]] AttentionInputs with_alibi_columns(const AttentionInputs& inputs,
                                                 const at::Tensor& document_offsets);

/// Heads [T, N, H] with zeros in those columns, and without the columns: a view.
[[nodiscard]] at::Tensor with_zero_columns(const at::Tensor& heads);
[[nodiscard]] at::Tensor without_columns(const at::Tensor& heads);

}  // namespace sherd::ops::cuda
