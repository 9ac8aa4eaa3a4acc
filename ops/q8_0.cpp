#include "ops/q8_0.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include "ops/plain/plain_backend.h"

namespace sherd::ops::q8_0 {

void quantize(const float* numbers, int64_t blocks, uint8_t* out) {
  for (int64_t block = 0; block < blocks; ++block, numbers += kBlockNumbers, out += kBlockBytes) {
    float largest = 0;
    for (int i = 0; i < kBlockNumbers; ++i) {
      largest = std::max(largest, std::abs(numbers[i]));
    }
    const float scale = largest / 127;
    const float inverse = std::isfinite(1 / scale) ? 1 / scale : 0;
    const c10::Half stored = scale;
    std::memcpy(out, &stored.x, sizeof stored.x);
    for (int i = 0; i < kBlockNumbers; ++i) {
      // Halves are rounded away from zero.
      const float rounded = std::clamp(std::round(numbers[i] * inverse), -127.0F, 127.0F);
      out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(rounded));
    }
  }
}

at::Tensor quantized(const at::Tensor& matrix) {
  const at::Tensor numbers = matrix.to(at::kFloat).contiguous();
  TORCH_CHECK_VALUE(numbers.dim() == 2 && numbers.is_cpu() && fits(numbers.size(1)),
                    "[q8_0] expected a matrix on the CPU whose rows are multiples of ",
                    kBlockNumbers, ", got ", matrix.sizes());
  at::Tensor blocks = at::empty({numbers.size(0), row_bytes(numbers.size(1))}, at::kByte);
  quantize(numbers.const_data_ptr<float>(), numbers.numel() / kBlockNumbers,
           blocks.mutable_data_ptr<uint8_t>());
  return blocks;
}

at::Tensor dequantized(const at::Tensor& blocks, c10::ScalarType dtype) {
  at::Tensor matrix =
      at::empty({blocks.size(0), row_numbers(blocks.size(1))}, blocks.options().dtype(dtype));
  plain::plain_backend().dequantize(matrix, blocks);
  return matrix;
}

}  // namespace sherd::ops::q8_0
