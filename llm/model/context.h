#pragma once
// What attention knows of a batch's tokens besides their vectors.

#include <ATen/core/Tensor.h>

#include "llm/model/kv_cache.h"
#include "ops/attention_kernel.h"
#include "ops/attention_scores.h"
#include "ops/documents.h"
#include "ops/rotary.h"

namespace llm::model {

/// One for a forward, the same in every layer: which tokens belong together, where in its text each
/// stands, and what has been read before. A struct and no plain tensors, so that units, which cast
/// the tensors they are called with to `param_dtype`, leave them in fp32.
struct Context {
  sherd::ops::Documents documents;
  /// Angles of each token's position: fp32 [T, 1, 1, rotated dimensions / 2]. Undefined where
  /// positions are not rotary.
  sherd::ops::RotaryTables rotary = {};
  /// The same for layers with a window, where they have rotary positions of their own.
  sherd::ops::RotaryTables window_rotary = {};
  /// Of each token in its text, int64 [T]. Undefined unless positions are learned.
  at::Tensor positions = {};
  /// Decide, with a module's name, which elements dropout drops: int64 [T], one per token.
  /// Undefined: nothing is dropped.
  at::Tensor dropout_keys_T = {};
  /// ALiBi's, fp32 [N]. Undefined where there is none.
  at::Tensor alibi_slopes = {};
  /// What computes attention on a GPU.
  sherd::ops::AttentionKernel attention = sherd::ops::AttentionKernel::Auto;
  /// Null unless decoding.
  KvCache* cache = nullptr;
};

/// Rotated by a context's angles, as many of the first dimensions as there are angles for:
/// [T, N, H] -> [T, N, H], contiguous.
[[nodiscard]] at::Tensor with_position(const at::Tensor& heads_TNH,
                                       const sherd::ops::RotaryTables& angles);

/// Attention of the tokens to what their documents hold, in the cache too, with the context's
/// biases. `layer` is the caller's place in the cache, `scores` are as in ops::attention.
/// Shapes: query [T, N, H], key and value [T, K, H] -> [T, N × H].
[[nodiscard]] at::Tensor attend(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const Context& context, int64_t layer,
                                const sherd::ops::AttentionScores& scores = {});

}  // namespace llm::model
