#pragma once
// The one number that data and models must agree on.

#include <cstdint>

namespace llm::inputs {

/// The label of a position that the loss does not count. PyTorch: `ignore_index` of cross_entropy.
inline constexpr std::int64_t kUnsupervised = -100;

}  // namespace llm::inputs
