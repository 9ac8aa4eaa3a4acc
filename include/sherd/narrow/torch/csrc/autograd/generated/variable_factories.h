#pragma GCC system_header
#ifdef SHERD_NARROW_TORCH
// Factories of tensors: ATen/ops/NAME.h has them.
#else
#include_next <torch/csrc/autograd/generated/variable_factories.h>
#endif
