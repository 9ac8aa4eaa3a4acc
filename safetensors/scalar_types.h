#pragma once
// The dtypes that Sherd reads and writes, on both sides: as the format names them and as LibTorch
// does.

#include <c10/core/ScalarType.h>

#include "safetensors/header.h"

namespace sherd::detail {

/// LibTorch's dtype for one of the format; Undefined if Sherd does not read it.
at::ScalarType scalar_type_of(const TensorDtype& dtype);

/// The format's dtype for one of LibTorch; null if Sherd does not write it.
const TensorDtype* dtype_of(at::ScalarType type);

}  // namespace sherd::detail
