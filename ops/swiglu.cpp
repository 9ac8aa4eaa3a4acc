#include "ops/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/dispatch.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows do not matter to an elementwise function, threads do.
constexpr int64_t kRow = 4'096;

template <class F>
void for_parts(int64_t numel, const F& f) {
  cpu::for_rows((numel + kRow - 1) / kRow, kRow,
                [&](int64_t begin, int64_t end) { f(begin * kRow, std::min(end * kRow, numel)); });
}

at::Tensor fast_forward(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor output = at::empty(gate.sizes(), gate.options());
  cpu::with_dtype(gate, [&](auto type) {
    using T = decltype(type);
    for_parts(gate.numel(), [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().swiglu(cpu::data<T>(gate) + begin, cpu::data<T>(up) + begin,
                               cpu::mutable_data<T>(output) + begin, end - begin);
    });
  });
  return output;
}

variable_list fast_backward(const at::Tensor& grad_output, const at::Tensor& gate,
                            const at::Tensor& up) {
  at::Tensor grad_gate = at::empty(gate.sizes(), gate.options());
  at::Tensor grad_up = at::empty(gate.sizes(), gate.options());
  cpu::with_dtype(gate, [&](auto type) {
    using T = decltype(type);
    for_parts(gate.numel(), [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().swiglu_backward(cpu::data<T>(grad_output) + begin,
                                        cpu::data<T>(gate) + begin, cpu::data<T>(up) + begin,
                                        cpu::mutable_data<T>(grad_gate) + begin,
                                        cpu::mutable_data<T>(grad_up) + begin, end - begin);
    });
  });
  return {grad_gate, grad_up};
}

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    RECORD_FUNCTION("sherd::swiglu", {});
    context->saved_data["fast"] = cpu::serves(gate);
    if (cpu::serves(gate)) {
      const at::Tensor dense_gate = gate.contiguous(), dense_up = up.contiguous();
      context->save_for_backward({dense_gate, dense_up});
      return fast_forward(dense_gate, dense_up);
    }
    context->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::swiglu_backward", {});
    const auto saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1], &grad_output = gradients[0];
    if (context->saved_data["fast"].toBool()) {
      return fast_backward(grad_output.contiguous(), gate, up);
    }
    return {at::silu_backward(grad_output * up, gate), at::silu(gate).mul_(grad_output)};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return SwiGlu::apply(gate, up);
}

}  // namespace sherd::ops
