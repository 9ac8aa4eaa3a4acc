#include "llm/model/rows_of_documents.h"

#include <algorithm>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "sherd/memory.h"

namespace llm::model {

RowsOfDocuments::RowsOfDocuments(const at::Tensor& positions_S,
                                 const sherd::ops::Documents& documents, at::Device device) {
  const at::Tensor positions = positions_S.contiguous();
  const auto* const begin = positions.const_data_ptr<int64_t>();
  const auto* const end = begin + positions.numel();
  std::vector<int64_t> firsts = {0};  // [N + 1] among the rows
  std::vector<int64_t> of_rows;
  std::vector<double> counts;
  int64_t most = 0;
  for (int64_t d = 0; d < documents.count(); ++d) {
    firsts.push_back(std::lower_bound(begin, end, documents.end(d)) - begin);
    const int64_t count = firsts[static_cast<size_t>(d) + 1] - firsts[static_cast<size_t>(d)];
    of_rows.insert(of_rows.end(), static_cast<size_t>(count), d);
    counts.push_back(static_cast<double>(count));
    most = std::max(most, count);
  }
  at::Tensor rows_NL = at::full({documents.count(), most}, positions.numel(), at::kLong);
  auto* row = rows_NL.mutable_data_ptr<int64_t>();
  for (int64_t d = 0; d < documents.count(); ++d, row += most) {
    const int64_t first = firsts[static_cast<size_t>(d)];
    const int64_t last = firsts[static_cast<size_t>(d) + 1];
    for (int64_t r = first; r < last; ++r) {
      row[r - first] = r;
    }
  }
  counts_N_ = sherd::to_device(at::tensor(counts, at::kDouble), device);
  documents_S_ = sherd::to_device(at::tensor(of_rows, at::kLong), device);
  rows_NL_ = sherd::to_device(rows_NL, device);
}

at::Tensor RowsOfDocuments::sums(const at::Tensor& values_S) const {
  const at::Tensor wide = values_S.to(at::kDouble);
  const at::Tensor none = at::zeros({1}, wide.options());
  return at::cat({wide, none}).index_select(0, rows_NL_.flatten()).view_as(rows_NL_).sum(1);
}

at::Tensor RowsOfDocuments::spread(const at::Tensor& values_N) const {
  return values_N.index_select(0, documents_S_);
}

}  // namespace llm::model
