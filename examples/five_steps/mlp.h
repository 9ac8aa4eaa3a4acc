#pragma once
// The model: blocks that are gathered one at a time, of linear layers that can get adapters.

#include <string>
#include <vector>

#include <sherd/sherd.h>

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : up(register_module("up", sherd::LoraLinear(width, 4 * width))),
        down(register_module("down", sherd::LoraLinear(4 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(x))); }
  sherd::LoraLinear up;
  sherd::LoraLinear down;
};
TORCH_MODULE(Block);

struct MlpImpl : torch::nn::Module {
  MlpImpl(int layers, int64_t width) : head(register_module("head", torch::nn::Linear(width, 1))) {
    for (int i = 0; i < layers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), sherd::Unit<Block>(width)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) {
      x = block(x);
    }
    return head(x);
  }
  std::vector<sherd::Unit<Block>> blocks;  // each is gathered as a whole while it runs
  torch::nn::Linear head;                  // in no Unit: it belongs to the root, the model itself
};
TORCH_MODULE(Mlp);  // declares the holder Mlp
