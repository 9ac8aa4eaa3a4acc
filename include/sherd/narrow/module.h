#pragma once
// torch::nn::Module and its holders, in less than half of the time that <torch/nn/module.h> takes
// to parse. README.md says how.

#ifndef SHERD_NARROW_TORCH  // set already for most sources of Sherd
#define SHERD_NARROW_TORCH
#define SHERD_NARROW_HERE
#endif

#include <torch/nn/module.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>

#ifdef SHERD_NARROW_HERE
#undef SHERD_NARROW_TORCH
#undef SHERD_NARROW_HERE
#endif
