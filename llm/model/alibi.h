#pragma once
// Attention with linear biases: the further back a key, the lower its score, by a slope of each
// head's own. No positions are embedded.  Paper: ALiBi, arXiv:2108.12409.

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace llm::model {

/// What every layer's attention adds to its scores. A struct and no plain tensor, so that units,
/// which cast the tensors they are called with to `param_dtype`, leave it in fp32.
struct Alibi {
  at::Tensor slopes;  ///< fp32 [N]
};

/// The slope of each of `heads` ≥ 1 heads: fp32 [N] in CPU memory. For a power of two the powers 1,
/// 2, … N of 2^(−8 ÷ N); else those of the next power of two below, then every second one of those
/// for twice as many heads. Rounded where Hugging Face rounds.
/// PyTorch: `build_alibi_tensor` of transformers.
[[nodiscard]] at::Tensor alibi_slopes(int64_t heads);

}  // namespace llm::model
