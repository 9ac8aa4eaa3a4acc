#include "ops/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/shared/gradient.h"
#include "ops/shared/recorded.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Rotary : torch::autograd::Function<Rotary> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& cosine, const at::Tensor& sine) {
    RECORD_FUNCTION("sherd::rotary", Recorded({input}));
    context->save_for_backward({cosine, sine});
    return choose_backend(*context, input).rotary(input, cosine, sine, /*direction=*/1);
  }

  // A rotation's transpose is its inverse.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::rotary_backward", Recorded({gradients[0]}));
    once_differentiable("sherd::rotary");
    const auto saved = context->get_saved_variables();
    const at::Tensor grad_input =
        chosen_backend(*context).rotary(gradients[0], saved[0], saved[1], /*direction=*/-1);
    return {grad_input, at::Tensor(), at::Tensor()};
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
