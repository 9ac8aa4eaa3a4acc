#pragma once
// What becomes of values between a parameter and its tensor in a GGUF file, both ways.

#include <ATen/core/Tensor.h>

#include "llm/gguf/architecture.h"

namespace llm::gguf {

/// How many heads a model has.
struct Heads {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};

/// Whether values of this shape can be changed so.
[[nodiscard]] bool can_change(const std::vector<std::int64_t>& shape, Change change,
                              const Heads& heads);
/// The parameter's values as the file has them, and the inverse. A norm is an fp32 tensor.
[[nodiscard]] at::Tensor to_gguf(const at::Tensor& values, Change change, const Heads& heads);
[[nodiscard]] at::Tensor from_gguf(const at::Tensor& values, Change change, const Heads& heads);

}  // namespace llm::gguf
