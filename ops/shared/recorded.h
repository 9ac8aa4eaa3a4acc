#pragma once
// What LibTorch's profilers are told of an operator beside its name.

#include <vector>

#include <ATen/core/ivalue.h>

namespace sherd::ops {

/// The arguments that decide how much an operator computes: tensors, documents as bounds, and how
/// many rows a chunk has.
/// RECORD_FUNCTION() makes it only where a profiler asks for arguments.
using Recorded = std::vector<c10::IValue>;

}  // namespace sherd::ops
