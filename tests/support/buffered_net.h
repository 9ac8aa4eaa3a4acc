#pragma once
// A model with buffers of two dtypes, one of them registered twice, one not contiguous.

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include "sherd/unit.h"
#include "tests/support/odd_nets.h"
#include "tests/support/seeded.h"

namespace sherd::test {

/// Normalises, with the names of a BatchNorm, in any mixture of dtypes.
struct NormImpl : torch::nn::Module {
  NormImpl()
      : weight(register_parameter("weight", at::ones({kOdd}))),
        bias(register_parameter("bias", at::zeros({kOdd}))),
        running_mean(register_buffer("running_mean", at::zeros({kOdd}))),
        running_var(register_buffer("running_var", at::ones({kOdd}))),
        num_batches_tracked(register_buffer("num_batches_tracked", at::zeros({}, at::kLong))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = (x - running_mean) / running_var.sqrt() * weight + bias;
    running_mean.mul_(0.9).add_(x.detach().mean(0), 0.1);
    num_batches_tracked.add_(1);
    return y;
  }
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;
};
TORCH_MODULE(Norm);

struct BufferedImpl : torch::nn::Module {
  BufferedImpl()
      : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))),
        norm(register_module("norm", Norm())),
        table(register_buffer("table", at::arange(kOdd, at::kFloat))) {
    register_buffer("same_table", table);
  }
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)) * table; }
  torch::nn::Linear linear;
  Norm norm;
  at::Tensor table;
};
TORCH_MODULE(Buffered);

struct BufferedNetImpl : torch::nn::Module {
  BufferedNetImpl()
      : body(register_module("body", Unit<Buffered>())),
        shift(register_buffer("shift", at::randn({kOdd, 3}).t())) {}
  at::Tensor forward(const at::Tensor& x) { return body(x) + shift.sum(); }
  Unit<Buffered> body;
  at::Tensor shift;
};
TORCH_MODULE(BufferedNet);

/// Buffers have other values than a new model's, too.
inline BufferedNet make_buffered(uint64_t seed) {
  return seeded(seed, [] {
    BufferedNet net;
    net->body->norm->running_mean.uniform_();
    net->body->norm->num_batches_tracked.fill_(5);
    return net;
  });
}

}  // namespace sherd::test
