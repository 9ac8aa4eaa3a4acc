#include "ops/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/dispatch.h"
#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A table of angles for each head's vector of [B, N, T, H / 2], as the step between them: 0 where
// it is broadcast.
struct Angles {
  Angles(const at::Tensor& table, at::IntArrayRef sizes)
      : expanded(table.expand({sizes[0], sizes[1], sizes[2], sizes[3] / 2})) {}
  [[nodiscard]] const float* at(int64_t b, int64_t n, int64_t t) const {
    return expanded.const_data_ptr<float>() + b * expanded.stride(0) + n * expanded.stride(1) +
           t * expanded.stride(2);
  }
  at::Tensor expanded;
};

at::Tensor fast_rotate(const at::Tensor& input, const RotaryTables& tables, int direction) {
  const at::Tensor dense = input.stride(3) == 1 ? input : input.contiguous();
  at::Tensor output = at::empty(dense.sizes(), dense.options());
  const Angles cosine(tables.cosine, dense.sizes()), sine(tables.sine, dense.sizes());
  const int64_t heads = dense.size(1), tokens = dense.size(2), size = dense.size(3);
  cpu::with_dtype(dense, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(dense.size(0) * heads * tokens, size, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t b = row / (heads * tokens), n = row / tokens % heads, t = row % tokens;
        cpu::kernels<T>().rotate(dense.const_data_ptr<T>() + b * dense.stride(0) +
                                     n * dense.stride(1) + t * dense.stride(2),
                                 cosine.at(b, n, t), sine.at(b, n, t),
                                 static_cast<float>(direction),
                                 cpu::mutable_data<T>(output) + row * size, size / 2);
      }
    });
  });
  return output;
}

// Rotates forwards with direction 1 and back with −1.
at::Tensor rotate(const at::Tensor& input, const RotaryTables& tables, int direction, bool fast) {
  if (fast) {
    return fast_rotate(input, tables, direction);
  }
  const auto dtype = input.scalar_type();
  const at::Tensor wide = input.to(statistics_dtype(dtype));
  at::Tensor output = at::empty(wide.sizes(), wide.options());
  const int64_t half = wide.size(-1) / 2;
  const at::Tensor first = wide.narrow(-1, 0, half);
  const at::Tensor second = wide.narrow(-1, half, half);
  at::Tensor out_first = output.narrow(-1, 0, half);
  at::Tensor out_second = output.narrow(-1, half, half);
  at::mul_out(out_first, first, tables.cosine).addcmul_(second, tables.sine, -direction);
  at::mul_out(out_second, second, tables.cosine).addcmul_(first, tables.sine, direction);
  return output.to(dtype);
}

struct Rotary : torch::autograd::Function<Rotary> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& cosine, const at::Tensor& sine) {
    RECORD_FUNCTION("sherd::rotary", {});
    context->save_for_backward({cosine, sine});
    const bool fast = cpu::serves(input) && cosine.stride(-1) == 1 && sine.stride(-1) == 1;
    context->saved_data["fast"] = fast;
    return rotate(input, {cosine, sine}, 1, fast);
  }

  // A rotation's transpose is its inverse.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::rotary_backward", {});
    once_differentiable("sherd::rotary");
    const auto saved = context->get_saved_variables();
    const bool fast = context->saved_data["fast"].toBool();
    return {rotate(gradients[0], {saved[0], saved[1]}, -1, fast), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RotaryTables rotary_tables(const at::Tensor& frequencies, int64_t positions) {
  const at::Tensor angles = at::arange(positions, frequencies.options()).unsqueeze(1) * frequencies;
  return {angles.cos(), angles.sin()};
}

at::Tensor rotary(const at::Tensor& input, const RotaryTables& tables) {
  return Rotary::apply(input, tables.cosine, tables.sine);
}

}  // namespace sherd::ops
