#pragma once
// A small model whose bits are the same on every processor: values from integers, products by plain
// loops in a fixed order, elsewhere only operations on single elements. What is left to differ is
// the engine.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>

#include "sherd/custom.h"
#include "sherd/unit.h"

namespace sherd::test {

/// Values between −1/4 and 1/4, exact in fp32, that depend on `salt` and the place alone.
inline at::Tensor exact_values(at::IntArrayRef shape, uint64_t salt) {
  at::Tensor values = at::empty(shape, at::kFloat);
  auto* out = values.mutable_data_ptr<float>();
  uint64_t state = salt * 0x9E3779B97F4A7C15U + 1;
  for (int64_t i = 0; i < values.numel(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    out[i] = static_cast<float>(static_cast<int64_t>((state >> 33U) % 2001U) - 1000) / 4096.0F;
  }
  return values;
}

/// a [m, k] × b [k, n], added up in fp32 in the order of k, rounded to the dtype of a.
inline at::Tensor exact_product(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.to(at::kFloat).contiguous();
  const at::Tensor right = b.to(at::kFloat).contiguous();
  const int64_t m = left.size(0);
  const int64_t k = left.size(1);
  const int64_t n = right.size(1);
  at::Tensor product = at::empty({m, n}, at::kFloat);
  const auto* x = left.const_data_ptr<float>();
  const auto* y = right.const_data_ptr<float>();
  auto* out = product.mutable_data_ptr<float>();
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += x[row * k + i] * y[i * n + column];
      }
      out[row * n + column] = sum;
    }
  }
  return product.to(a.scalar_type());
}

/// x [rows, in] × weight [out, in]ᵀ. With `use_slot` the weight's gradient is written into its
/// GradSlot, as Sherd's operators do; without, it is returned, as stock operators do.
struct ExactLinear : torch::autograd::Function<ExactLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, bool use_slot) {
    context->save_for_backward({x, weight});
    context->saved_data["use_slot"] = use_slot;
    return exact_product(x, weight.t());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    at::Tensor weight_gradient = exact_product(gradients[0].t(), saved[0]);
    if (context->saved_data["use_slot"].toBool()) {
      if (const auto slot = GradSlot::of(saved[1])) {
        slot.write([&](at::Tensor& out) { out.copy_(weight_gradient); });
        weight_gradient.reset();
      }
    }
    return {exact_product(gradients[0], saved[1]), weight_gradient, at::Tensor()};
  }
};

/// x [rows, columns] times a factor a column [columns].
struct ExactScale : torch::autograd::Function<ExactScale> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& factors) {
    context->save_for_backward({x, factors});
    return x * factors.to(x.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor each = gradients[0].to(at::kFloat) * saved[0].to(at::kFloat);
    const at::Tensor sum = exact_product(at::ones({1, each.size(0)}), each).reshape({-1});
    return {gradients[0] * saved[1].to(gradients[0].scalar_type()), sum.to(saved[1].scalar_type())};
  }
};

struct ExactBlockImpl : torch::nn::Module {
  ExactBlockImpl(int64_t width, uint64_t salt)
      : up(register_parameter("up", exact_values({width + 6, width}, salt))),
        down(register_parameter("down", exact_values({width, width + 6}, salt + 1))),
        scale(register_parameter("scale", exact_values({width}, salt + 2) + 1)) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = at::relu(ExactLinear::apply(x, up, true));
    return x + ExactScale::apply(ExactLinear::apply(hidden, down, false), scale);
  }
  at::Tensor up;
  at::Tensor down;
  at::Tensor scale;
};
TORCH_MODULE(ExactBlock);

/// Sizes that divide by nothing; the weight of `input` is tied to `output`.
struct ExactNetImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 13;
  static constexpr int64_t kFeatures = 5;
  explicit ExactNetImpl(bool use_twice = false)
      : use_twice_(use_twice),
        input(register_parameter("input", exact_values({kWidth, kFeatures}, 1))),
        bias(register_parameter("bias", exact_values({kFeatures}, 2))) {
    for (int i = 0; i < 3; ++i) {
      const auto salt = static_cast<uint64_t>(10 * (i + 1));
      blocks.push_back(
          register_module("block" + std::to_string(i), sherd::Unit<ExactBlock>(kWidth, salt)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = ExactLinear::apply(x, input, true);
    for (auto& block : blocks) {
      hidden = block(hidden);
    }
    if (use_twice_) {
      hidden = blocks[0](hidden);
    }
    const at::Tensor ones = at::ones({x.size(0), 1}, hidden.options());
    return ExactLinear::apply(hidden, input.t(), false) +
           ExactLinear::apply(ones, bias.unsqueeze(1), false);
  }

 private:
  bool use_twice_;

 public:
  at::Tensor input;
  at::Tensor bias;
  std::vector<sherd::Unit<ExactBlock>> blocks;
};
TORCH_MODULE(ExactNet);

/// Three rows of micro-batch number `index`, and what the model should make of them.
inline std::pair<at::Tensor, at::Tensor> exact_example(int64_t index) {
  const auto salt = static_cast<uint64_t>(1000 + 2 * index);
  return {exact_values({3, ExactNetImpl::kFeatures}, salt),
          exact_values({3, ExactNetImpl::kFeatures}, salt + 1)};
}

}  // namespace sherd::test
