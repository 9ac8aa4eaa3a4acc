#pragma once
// Weights in 8 bits from files that store them in floats.

#include <functional>
#include <string>

#include "llm/model/causal_lm.h"
#include "sherd/checkpoint.h"

namespace llm::io {

/// Reads bytes [begin, end) of a weight in Q8_0 (ops/q8_0.h) from a tensor of floats, quantizing
/// the blocks that they lie in. Memory: 2 MiB. Throws sherd::Error: BadData, naming the tensor, for
/// a number that is not finite; as SafetensorsFile::read_elements().
void read_q8_0(const sherd::SafetensorsLocation& stored, std::int64_t begin, std::int64_t end,
               void* out);

/// For sherd::load_safetensors(): read_q8_0() for the quantized weights of a model (which may be on
/// meta), none for the others.
[[nodiscard]] std::function<sherd::StoredReader(const std::string&)> quantizing_readers(
    const model::CausalLmImpl& model);

}  // namespace llm::io
