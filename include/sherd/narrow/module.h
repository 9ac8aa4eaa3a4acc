#pragma once
// torch::nn::Module and its holders, in less than half of the time that <torch/nn/module.h> takes
// to parse. README.md says how.

#ifdef SHERD_NARROW_TORCH  // set for the whole source
#include <torch/nn/module.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>
#else
#define SHERD_NARROW_TORCH
#include <torch/nn/module.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>
#undef SHERD_NARROW_TORCH
#endif
