#pragma once
// Weights in 8 bits, as llama.cpp's Q8_0 defines them: blocks of 32 consecutive numbers of a row,
// each a scale in fp16 and 32 codes in int8. A number is scale × code.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace sherd::ops::q8_0 {

inline constexpr int64_t kBlockNumbers = 32;
inline constexpr int64_t kBlockBytes = 34;

/// Returns true if blocks hold a row of so many numbers.
[[nodiscard]] constexpr bool fits(int64_t numbers) {
  return numbers > 0 && numbers % kBlockNumbers == 0;
}
/// Bytes of a row, which fits().
[[nodiscard]] constexpr int64_t row_bytes(int64_t numbers) {
  return numbers / kBlockNumbers * kBlockBytes;
}
/// Numbers of a row of so many bytes.
[[nodiscard]] constexpr int64_t row_numbers(int64_t bytes) {
  return bytes / kBlockBytes * kBlockNumbers;
}

/// Returns true if a weight is rows of blocks: uint8 [rows, row_bytes(columns)].
[[nodiscard]] inline bool is_quantized(const at::Tensor& weight) {
  return weight.scalar_type() == at::kByte;
}
/// Columns of the matrix that a weight [rows, columns] is, quantized or not.
[[nodiscard]] inline int64_t columns_of(const at::Tensor& weight) {
  return is_quantized(weight) ? row_numbers(weight.size(1)) : weight.size(1);
}

/// Sizes of the numbers of a parameter, quantized or not.
[[nodiscard]] inline std::vector<int64_t> number_sizes(const at::Tensor& parameter) {
  return is_quantized(parameter) ? std::vector<int64_t>{parameter.size(0), columns_of(parameter)}
                                 : parameter.sizes().vec();
}

/// How many numbers a parameter holds, quantized or not.
[[nodiscard]] inline int64_t numbers_in(const at::Tensor& parameter) {
  return is_quantized(parameter) ? parameter.size(0) * columns_of(parameter) : parameter.numel();
}

/// Rounds 32 × `blocks` finite numbers, to the bits of llama.cpp's quantize_row_q8_0_ref.
void quantize(const float* numbers, int64_t blocks, uint8_t* out);
/// Returns a matrix [rows, columns] on the CPU, whose rows fit(), as uint8 [rows, row bytes].
[[nodiscard]] at::Tensor quantized(const at::Tensor& matrix);
/// Returns rows of blocks as a matrix, each number rounded to `dtype`. Memory: the matrix. Products
/// with a weight dequantize it by tiles instead.
[[nodiscard]] at::Tensor dequantized(const at::Tensor& blocks, c10::ScalarType dtype);

}  // namespace sherd::ops::q8_0
