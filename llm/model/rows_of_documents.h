#pragma once
// The rows of a batch's head by document.

#include <ATen/core/Tensor.h>

#include "ops/documents.h"

namespace llm::model {

// Shapes: N documents, S supervised positions, L positions of the document that has most.

/// Sums over the supervised positions of each document, and values of documents at each of its
/// positions. The order of a sum does not depend on the device, so results repeat.
class RowsOfDocuments {
 public:
  /// `positions_S`: int64 [S] in the host's memory, ascending. Results lie on `device`.
  RowsOfDocuments(const at::Tensor& positions_S, const sherd::ops::Documents& documents,
                  at::Device device);

  /// fp64 [N]
  [[nodiscard]] const at::Tensor& counts_N() const { return counts_N_; }
  /// [S] -> fp64 [N]; 0 for a document without positions.
  [[nodiscard]] at::Tensor sums(const at::Tensor& values_S) const;
  /// [N] -> [S]
  [[nodiscard]] at::Tensor spread(const at::Tensor& values_N) const;

 private:
  at::Tensor counts_N_;
  at::Tensor documents_S_;  // int64: the document of each position
  at::Tensor rows_NL_;      // int64: those of each document; S where it has no more
};

}  // namespace llm::model
