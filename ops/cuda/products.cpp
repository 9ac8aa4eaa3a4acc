// Matrix products, which are LibTorch's, and sums over rows.

#include <limits>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sort.h>

#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/plain_uses.h"

namespace sherd::ops::cuda {
namespace {

bool is_16_bits(c10::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

void mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (out.scalar_type() == at::kFloat && is_16_bits(a.scalar_type())) {
    mm_of_16_bits(out, a, b);
  } else {
    plain_backend().mm(out, a, b);
  }
}

int64_t mm_room_bytes(c10::ScalarType out, c10::ScalarType in, int64_t m, int64_t k, int64_t n) {
  return out == at::kFloat && is_16_bits(in) ? 0 : plain_backend().mm_room_bytes(out, in, m, k, n);
}

void head_logits(at::Tensor& logits, const at::Tensor& hidden, const at::Tensor& weight) {
  mm(logits, hidden, weight.t());
}

void dequantize(at::Tensor& out, const at::Tensor& blocks) {
  if (!are_packed({out})) {
    note_plain_use("dequantize", reason_of(out, out.size(1)));
    plain_backend().dequantize(out, blocks);
    return;
  }
  const QuantizedRows<void> rows{.blocks = blocks.const_data_ptr<uint8_t>(),
                                 .out = mutable_data(out),
                                 .rows = out.size(0),
                                 .width = out.size(1),
                                 .stride = blocks.stride(0)};
  on_device_of(out, [&](StreamHandle stream) { launch_dequantize(dtype_of(out), stream, rows); });
}

at::Tensor column_sums(const at::Tensor& matrix) {
  const at::Tensor dense = matrix.contiguous();
  if (are_packed({dense}) && fits_packs(dense, dense.size(1))) {
    return sum_of_rows(dense);
  }
  note_plain_use("column_sums", reason_of(dense, dense.size(1)));
  return plain_backend().column_sums(dense);
}

// Ids in 32 bits, ascending, those of an id in their order, so that a sum does not depend on the
// threads'; and where each came from.
std::pair<at::Tensor, at::Tensor> sorted_ids(const at::Tensor& ids) {
  const auto narrow = ids.options().dtype(at::kInt);
  if (ids.numel() > kMostComparedIds) {
    const auto [sorted, order] =
        at::sort(ids.to(at::kInt), /*stable=*/std::optional<bool>(true), /*dim=*/0);
    return {sorted, order};
  }
  const at::Tensor dense = ids.contiguous();
  std::pair<at::Tensor, at::Tensor> result{at::empty(ids.sizes(), narrow),
                                           at::empty(ids.sizes(), ids.options())};
  on_device_of(ids, [&](StreamHandle stream) {
    launch_sorted_ids(stream, dense.const_data_ptr<int64_t>(), ids.numel(),
                      mutable_data<int32_t>(result.first), mutable_data<int64_t>(result.second));
  });
  return result;
}

// Of the gradient's dtype or in fp32, and no more rows than 32 bits count.
bool serves_embedding(const at::Tensor& out, const at::Tensor& ids, const at::Tensor& gradient) {
  const bool fits = out.scalar_type() == gradient.scalar_type() || out.scalar_type() == at::kFloat;
  return has_kernels(gradient) && fits && out.is_contiguous() && !ids.is_meta() &&
         out.size(0) < std::numeric_limits<int32_t>::max();
}

void add_embedding_gradient(at::Tensor& out, const at::Tensor& ids, const at::Tensor& gradient) {
  if (!serves_embedding(out, ids, gradient)) {
    note_plain_use("add_embedding_gradient",
                   "the table is " + std::string(c10::toString(out.scalar_type())) +
                       ", its gradient " + c10::toString(gradient.scalar_type()));
    plain_backend().add_embedding_gradient(out, ids, gradient);
    return;
  }
  const auto [sorted, order] = sorted_ids(ids);
  const at::Tensor dense = gradient.contiguous();
  const EmbeddingRows<void, void> rows{.ids = sorted.const_data_ptr<int32_t>(),
                                       .order = order.const_data_ptr<int64_t>(),
                                       .gradient = data(dense),
                                       .out = mutable_data(out),
                                       .count = ids.numel(),
                                       .width = out.size(1)};
  on_device_of(out, [&](StreamHandle stream) {
    launch_embedding_gradient(dtype_of(dense), dtype_of(out), stream, rows);
  });
}

}  // namespace

at::Tensor sum_of_rows(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1), count = sum_parts(rows);
  const at::Tensor parts = room_for_parts(true, count, columns, matrix);
  on_device_of(matrix, [&](StreamHandle stream) {
    launch_column_sums(dtype_of(matrix), stream, data(matrix), mutable_data<float>(parts), rows,
                       columns, count);
  });
  return count == 1 ? parts[0] : sum_of_rows(parts);
}

void add_products(Backend& backend) {
  backend.mm = &mm;
  backend.mm_room_bytes = &mm_room_bytes;
  backend.head_logits = &head_logits;
  backend.head_input_gradient = &mm;
  backend.dequantize = &dequantize;
  backend.column_sums = &column_sums;
  backend.add_embedding_gradient = &add_embedding_gradient;
}

}  // namespace sherd::ops::cuda
