#pragma once

#include <string>

#include "ops/backend.h"

namespace sherd::ops::cuda {

/// Has `kernel`, Cudnn or Flash, compute attention and its gradients of two made-up documents of
/// 192 tokens, with the dtype, the heads, the slopes and the device of `like`, within a window of
/// 100 tokens where `like` has one, and compares them with the plain back end's in fp32. Returns
/// what is wrong; empty if nothing is. The host waits for the device. Memory: about 20 × 384 tokens
/// of all heads in fp32, for a moment.
[[nodiscard]] std::string problem_of_attention(const AttentionInputs& like, AttentionKernel kernel);

/// The first line of an error's text.
[[nodiscard]] std::string first_line_of(const c10::Error& error);

}  // namespace sherd::ops::cuda
