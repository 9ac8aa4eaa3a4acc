#pragma once
// Counters that decide which elements dropout drops.

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "llm/model/causal_lm.h"

namespace llm::model {

/// Keys for Context::dropout_keys_T: int64 [T] in CPU memory, a function of the seed, the step, the
/// sample's number in the data set and the token's position in the sample. So the mask depends
/// neither on the number of ranks nor on packing. `samples`: the number of each document's sample;
/// `bounds`: of the documents, as sherd::ops::Documents has them.
[[nodiscard]] at::Tensor dropout_keys(std::uint64_t seed, std::int64_t step,
                                      std::span<const std::int64_t> samples,
                                      std::span<const std::int64_t> bounds);

/// Returns true if some adapter of `model` has dropout.
[[nodiscard]] bool has_dropout(const CausalLmImpl& model);

}  // namespace llm::model
