#pragma once
// Notes what the back end leaves to the plain one.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ops/backend.h"

namespace sherd::ops::cuda {

/// Notes the first call of a function that no kernel serves. Any thread.
void note_plain_use(const char* function, const std::string& reason);

/// Why no kernel serves tensors like this one in rows of `width`: its dtype, rows that are no whole
/// packs, or else strides or addresses.
[[nodiscard]] std::string reason_of(const at::Tensor& tensor, int64_t width);

/// Backend::plain_uses.
[[nodiscard]] std::vector<PlainUse> noted_plain_uses();

}  // namespace sherd::ops::cuda
