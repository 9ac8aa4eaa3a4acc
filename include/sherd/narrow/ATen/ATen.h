#pragma GCC system_header
#ifdef SHERD_NARROW_TORCH
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#else
#include_next <ATen/ATen.h>
#endif
