#pragma once
// A small model with units, whose sizes divide by nothing, and the batches it is trained on.

#include <string>
#include <vector>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/modules/linear.h>

#include "sherd/unit.h"
#include "tests/support/seeded.h"

namespace sherd::test {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, width + 6))),
        down(register_module("down", torch::nn::Linear(width + 6, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(at::tanh(up(x))); }
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int layers = 3, int64_t width = 13)
      : input(register_module("input", torch::nn::Linear(5, width))),
        head(register_module("head", torch::nn::Linear(width, 3))) {
    for (int i = 0; i < layers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), sherd::Unit<Block>(width)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = input(x);
    for (auto& block : blocks) {
      hidden = block(hidden);
    }
    return head(hidden);
  }
  torch::nn::Linear input;
  std::vector<sherd::Unit<Block>> blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

/// The same values for the same seed, whatever was built before.
inline Net make_net(int layers = 3, int64_t width = 13) {
  return seeded(7, [&] { return Net(layers, width); });
}

struct Example {
  at::Tensor x;
  at::Tensor y;
};

/// Micro-batch number `index` of the data, three rows each.
inline Example make_example(int64_t index) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + index));
  return {at::randn({3, 5}, generator), at::randn({3, 3}, generator)};
}

inline at::Tensor sum_of_errors(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output.to(at::kFloat), target, at::Reduction::Sum);
}

}  // namespace sherd::test
