#pragma once

#include "ops/backend.h"

namespace sherd::ops {

/// The back end for GPUs, of the library libsherd_ops_cuda.so: found by the program's run path, and
/// loaded at the first call. `plain` itself, with a warning that says why, where it cannot be
/// loaded.
[[nodiscard]] Backend backend_of_cuda_library(const Backend& plain);

/// backend_of_cuda_library() of a library by another name.
[[nodiscard]] Backend backend_of_library(const char* library, const Backend& plain);

}  // namespace sherd::ops
