#include "ops/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rotates forwards with direction 1 and back with −1.
at::Tensor rotate(const at::Tensor& input, const RotaryTables& tables, int direction) {
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
    context->save_for_backward({cosine, sine});
    return rotate(input, {cosine, sine}, 1);
  }

  // A rotation's transpose is its inverse.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {rotate(gradients[0], {saved[0], saved[1]}, -1), at::Tensor(), at::Tensor()};
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
