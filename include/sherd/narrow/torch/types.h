#pragma GCC system_header
// LibTorch's own may have been parsed narrowly already: its includes are widened by name.
#ifndef SHERD_NARROW_TORCH
#include <ATen/ATen.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/library.h>
#endif
#include_next <torch/types.h>
