#pragma once
// Blocks of quantised numbers, as llama.cpp defines them.

#include <cstdint>

#include "llm/gguf/gguf_value.h"

namespace llm::gguf {

/// Writes the numbers of `blocks` blocks to `out`. F32, F16 and BF16 are no blocks, and are not
/// taken.
void dequantize(TensorType type, const std::uint8_t* bytes, std::int64_t blocks, float* out);

}  // namespace llm::gguf
