#pragma once

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// The angles of rotary position embedding, computed once and used by every layer.
struct RotaryTables {
  at::Tensor cosine;  ///< fp32 [positions, H / 2]
  at::Tensor sine;    ///< as `cosine`
};

/// Angles position × frequency for positions 0 … `positions` − 1.
/// Shapes: frequencies fp32 [H / 2]. Computed in fp32 throughout, as Hugging Face does.
[[nodiscard]] RotaryTables rotary_tables(const at::Tensor& frequencies, int64_t positions);

/// Rotates each head's pairs (i, i + H / 2) by the angle of their position.
/// Shapes: input [B, N, T, H], any strides; tables broadcast to [B, N, T, H / 2] -> [B, N, T, H],
/// contiguous. Computed in fp32, rounded once.  Paper: RoFormer, arXiv:2104.09864.
[[nodiscard]] at::Tensor rotary(const at::Tensor& input, const RotaryTables& tables);

}  // namespace sherd::ops
