#include "ops/head_products.h"

#include <algorithm>

#include <ATen/ops/mm.h>

namespace sherd::ops {
namespace {

constexpr int64_t kMostRows = 384;        // of a block of logits
constexpr int64_t kRowsAsTheyAre = 256;   // fewer are not worth a transposition
constexpr int64_t kOutputsToAnInput = 8;  // what "far above" is

bool is_wide(const at::Tensor& weight) {
  return weight.size(0) >= kOutputsToAnInput * weight.size(1);
}

}  // namespace

void head_logits(at::Tensor& logits, const at::Tensor& hidden, const at::Tensor& weight) {
  const int64_t rows = hidden.size(0);
  if (rows <= kMostRows || !is_wide(weight)) {
    at::mm_out(logits, hidden, weight.t());
    return;
  }
  const int64_t blocks = (rows + kMostRows - 1) / kMostRows;
  const int64_t block = (rows + blocks - 1) / blocks;
  for (int64_t begin = 0; begin < rows; begin += block) {
    const int64_t end = std::min(begin + block, rows);
    at::Tensor part = logits.slice(0, begin, end);
    at::mm_out(part, hidden.slice(0, begin, end), weight.t());
  }
}

void head_input_gradient(at::Tensor& grad_hidden, const at::Tensor& grad_logits,
                         const at::Tensor& weight) {
  if (grad_logits.size(0) <= kRowsAsTheyAre || !is_wide(weight)) {
    at::mm_out(grad_hidden, grad_logits, weight);
  } else {
    grad_hidden.copy_(at::mm(weight.t(), grad_logits.t()).t());
  }
}

}  // namespace sherd::ops
