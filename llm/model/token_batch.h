#pragma once
// A batch as tensors: documents side by side, without padding.

#include <ATen/core/Tensor.h>

#include "ops/documents.h"

namespace llm::model {

/// What CausalLmImpl::loss_sum() takes.
struct TokenBatch {
  at::Tensor ids_T;     ///< int64 [T]
  at::Tensor labels_T;  ///< as `ids_T`, not shifted
  sherd::ops::Documents documents;
  /// As Context::dropout_keys_T, on any device.
  at::Tensor dropout_keys_T = {};
  at::Tensor reference_logps_N = {};  ///< fp64, of each document; undefined where not known
};

/// Rows int64 [B, T] that are padded on the right, where the mask is 0, as documents.
/// Throws c10::Error for padding on the left or a row without tokens.
[[nodiscard]] TokenBatch without_padding(const at::Tensor& ids_BT, const at::Tensor& labels_BT,
                                         const at::Tensor& attention_mask_BT);

}  // namespace llm::model
