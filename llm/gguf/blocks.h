#pragma once
// Blocks of quantised numbers, as llama.cpp defines them.

#include <cstdint>

#include "llm/gguf/gguf_value.h"

namespace llm::gguf {

/// Writes the numbers of `blocks` blocks to `out`. F32, F16 and BF16 are no blocks, and are not
/// taken.
void dequantize(TensorType type, const std::uint8_t* bytes, std::int64_t blocks, float* out);

/// Rounds 32 × `blocks` finite numbers to Q8_0, to the bits of llama.cpp's quantize_row_q8_0_ref.
void quantize_q8_0(const float* numbers, std::int64_t blocks, std::uint8_t* out);

}  // namespace llm::gguf
