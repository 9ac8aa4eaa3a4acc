// Products of few rows: what generation computes for each token.

#include <ATen/core/Tensor.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/dispatch.h"

namespace sherd::ops::cpu {
namespace {

// Beyond, a product pays for the copy of the weight that a library makes.
constexpr int64_t kMostFewRows = 32;

// The loops need registers that the plain set does not have.
int64_t few_rows() {
  return isa() >= Isa::Avx2 ? kMostFewRows : 0;
}

void few_rows_product(at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                      const at::Tensor& bias) {
  with_dtype(input, [&](auto type) {
    using T = decltype(type);
    const FewRows<T> of{.input = data<T>(input),
                        .weight = data<T>(weight),
                        .bias = data<T>(bias),
                        .rows = input.size(0),
                        .inner = input.size(1),
                        .outputs = weight.size(0)};
    for_rows(of.outputs, of.inner, [&](int64_t begin, int64_t end) {
      kernels<T>().few_rows_product(of, mutable_data<T>(out), begin, end);
    });
  });
}

}  // namespace

void add_few_rows(Backend& backend) {
  backend.few_rows = &few_rows;
  backend.few_rows_product = &few_rows_product;
}

}  // namespace sherd::ops::cpu
