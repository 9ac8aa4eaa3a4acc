// Dropout by counters, a word for each element.

#include <ATen/ops/empty.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/dispatch.h"
#include "ops/shared/dropped.h"

namespace sherd::ops::cpu {
namespace {

template <class T>
void drop_row(const T* input, T* output, int64_t width, uint64_t key, int64_t below, float factor) {
  for (int64_t column = 0; column < width; ++column) {
    key += kWordStep;
    const bool is_kept = static_cast<int64_t>(mixed(key) >> 11U) >= below;
    output[column] = is_kept ? static_cast<T>(static_cast<float>(input[column]) * factor) : T(0);
  }
}

at::Tensor dropped(const at::Tensor& matrix, const Dropout& dropout) {
  const at::Tensor dense = matrix.contiguous();
  at::Tensor output = at::empty(dense.sizes(), dense.options());
  const int64_t width = dense.size(1), below = dropped_below(dropout.probability);
  const auto factor = static_cast<float>(kept_factor(dropout.probability));
  const at::Tensor keys = dropout.row_keys.contiguous();
  with_dtype(dense, [&](auto type) {
    using T = decltype(type);
    const auto* const of_rows = keys.const_data_ptr<int64_t>();
    for_rows(dense.size(0), width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const uint64_t key = static_cast<uint64_t>(of_rows[row]) + dropout.module_key;
        drop_row(data<T>(dense) + row * width, mutable_data<T>(output) + row * width, width, key,
                 below, factor);
      }
    });
  });
  return output;
}

}  // namespace

void add_dropout(Backend& backend) {
  backend.dropped = &dropped;
}

}  // namespace sherd::ops::cpu
