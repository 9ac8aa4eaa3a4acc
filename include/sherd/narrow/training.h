#pragma once
// What many training programs use of LibTorch: operators, factories, torch::nn::Linear and
// torch::nn::Embedding, torch::manual_seed(). Quick to parse. For everything else include
// <torch/torch.h>, or ATen/ops/NAME.h for one operator.

#ifndef SHERD_NARROW_TORCH  // set already for most sources of Sherd
#define SHERD_NARROW_TORCH
#define SHERD_NARROW_HERE
#endif

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bilinear.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/embedding_renorm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

#ifdef SHERD_NARROW_HERE
#undef SHERD_NARROW_TORCH
#undef SHERD_NARROW_HERE
#endif

// Seen whole, before modules that call them: an inline function must mean the same everywhere.
#include <torch/csrc/autograd/generated/variable_factories.h>

#ifndef SHERD_NARROW_TORCH
#define SHERD_NARROW_TORCH
#define SHERD_NARROW_HERE
#endif

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#ifdef SHERD_NARROW_HERE
#undef SHERD_NARROW_TORCH
#undef SHERD_NARROW_HERE
#endif
