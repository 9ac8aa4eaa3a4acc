// Weights in 8 bits, as matrices.

#include <ATen/core/Tensor.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/dispatch.h"
#include "ops/q8_0.h"

namespace sherd::ops::cpu {
namespace {

static_assert(kQ8Numbers == q8_0::kBlockNumbers && kQ8Bytes == q8_0::kBlockBytes);

// 1 MiB of bf16 or 2 of fp32, which stay in the cache until the product has read them.
constexpr int64_t kDequantizedNumbers = int64_t{1} << 19;

void dequantize(at::Tensor& out, const at::Tensor& blocks) {
  const int64_t width = out.size(1);
  with_dtype(out, [&](auto type) {
    using T = decltype(type);
    const auto* from = blocks.const_data_ptr<uint8_t>();
    T* to = mutable_data<T>(out);
    for_rows(out.size(0), width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        kernels<T>().dequantize(from + r * blocks.stride(0), to + r * width, width / kQ8Numbers);
      }
    });
  });
}

}  // namespace

void add_quantized(Backend& backend) {
  backend.dequantize = &dequantize;
  backend.dequantized_numbers = kDequantizedNumbers;
}

}  // namespace sherd::ops::cpu
