// Dropout by counters in LibTorch's operators, on any device: 64-bit words as int64, whose products
// wrap and whose shifts bring in the sign.

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include "ops/plain/plain_backend.h"
#include "ops/shared/dropped.h"
#include "ops/shared/gradient.h"

namespace sherd::ops::plain {
namespace {

constexpr int64_t kWordsAtATime = int64_t{1} << 22;  // 32 MiB, three times

int64_t as_signed(uint64_t word) {
  return static_cast<int64_t>(word);
}

at::Tensor shifted_right(const at::Tensor& words, int64_t bits) {
  return words.bitwise_right_shift(bits).bitwise_and_(as_signed(~uint64_t{0} >> bits));
}

// mixed() of each, in place.
void mix(at::Tensor& words) {
  words.bitwise_xor_(shifted_right(words, 30)).mul_(as_signed(0xBF58476D1CE4E5B9));
  words.bitwise_xor_(shifted_right(words, 27)).mul_(as_signed(0x94D049BB133111EB));
  words.bitwise_xor_(shifted_right(words, 31));
}

at::Tensor dropped(const at::Tensor& matrix, const Dropout& dropout) {
  const at::Tensor keys = dropout.row_keys + as_signed(dropout.module_key);
  const at::Tensor steps = at::arange(1, matrix.size(1) + 1, keys.options()) * as_signed(kWordStep);
  at::Tensor out = at::empty(matrix.sizes(), matrix.options());
  const int64_t rows = std::max<int64_t>(1, kWordsAtATime / std::max<int64_t>(1, matrix.size(1)));
  for (int64_t begin = 0; begin < matrix.size(0); begin += rows) {
    const int64_t end = std::min(begin + rows, matrix.size(0));
    at::Tensor words = keys.slice(0, begin, end).unsqueeze(1) + steps;
    mix(words);
    const at::Tensor is_dropped = shifted_right(words, 11).lt(dropped_below(dropout.probability));
    at::Tensor part = out.slice(0, begin, end);
    const at::Tensor kept = matrix.slice(0, begin, end).to(statistics_dtype(matrix.scalar_type())) *
                            kept_factor(dropout.probability);
    part.copy_(kept).masked_fill_(is_dropped, 0);
  }
  return out;
}

}  // namespace

void add_dropout(Backend& backend) {
  backend.dropped = &dropped;
}

}  // namespace sherd::ops::plain
