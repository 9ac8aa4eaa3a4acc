#pragma GCC system_header
#ifdef SHERD_NARROW_TORCH
// Registration of operators.
#else
#include_next <torch/library.h>
#endif
