#pragma once
// Frozen weights in 8 bits.

#include <cstdint>
#include <string>

#include "llm/model/causal_lm.h"

namespace llm::model {

/// Turns the weights of linear maps in the decoder's layers into rows of Q8_0 blocks (ops/q8_0.h),
/// uint8 [rows, row bytes], of which on meta there are no values. Embedding, head, norms and biases
/// stay as they are, and so do adapters, and weights whose rows are no multiple of 32 numbers.
/// Before sharding. Throws sherd::Error(Usage), naming it, for a weight that is to be trained.
void quantize_q8_0(CausalLmImpl& model);

/// The number of values in quantized weights.
[[nodiscard]] std::int64_t quantized_numbers(const CausalLmImpl& model);

/// For people: which weights of layers quantize_q8_0() left because of their rows. Empty for none.
[[nodiscard]] std::string unquantized_line(const CausalLmImpl& model);

}  // namespace llm::model
