#pragma GCC system_header
#ifdef SHERD_NARROW_TORCH
#include <ATen/core/ivalue.h>  // CustomClassHolder
#else
#include_next <torch/custom_class.h>
#endif
