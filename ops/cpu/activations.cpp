// SwiGLU, GeGLU, GELU with a bias, and rotation of heads, of tensors.

#include <algorithm>

#include <ATen/ops/empty.h>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/dispatch.h"

namespace sherd::ops::cpu {
namespace {

// Rows do not matter to an elementwise function, threads do.
constexpr int64_t kRow = 4'096;

template <class F>
void for_parts(int64_t numel, const F& f) {
  for_rows((numel + kRow - 1) / kRow, kRow,
           [&](int64_t begin, int64_t end) { f(begin * kRow, std::min(end * kRow, numel)); });
}

// `loop_of`: the loop for swiglu or geglu of a Kernels<T>.
template <class Loop>
at::Tensor gated(const at::Tensor& any_gate, const at::Tensor& any_up, const Loop& loop_of) {
  const at::Tensor gate = any_gate.contiguous(), up = any_up.contiguous();
  at::Tensor output = at::empty(gate.sizes(), gate.options());
  with_dtype(gate, [&](auto type) {
    using T = decltype(type);
    for_parts(gate.numel(), [&](int64_t begin, int64_t end) {
      loop_of(kernels<T>())(data<T>(gate) + begin, data<T>(up) + begin,
                            mutable_data<T>(output) + begin, end - begin);
    });
  });
  return output;
}

template <class Loop>
SwiGluGradients gated_backward(const at::Tensor& grad_output, const at::Tensor& any_gate,
                               const at::Tensor& any_up, const Loop& loop_of) {
  const at::Tensor grad = grad_output.contiguous();
  const at::Tensor gate = any_gate.contiguous(), up = any_up.contiguous();
  SwiGluGradients result{at::empty(gate.sizes(), gate.options()),
                         at::empty(gate.sizes(), gate.options())};
  with_dtype(gate, [&](auto type) {
    using T = decltype(type);
    for_parts(gate.numel(), [&](int64_t begin, int64_t end) {
      loop_of(kernels<T>())(data<T>(grad) + begin, data<T>(gate) + begin, data<T>(up) + begin,
                            mutable_data<T>(result.gate) + begin,
                            mutable_data<T>(result.up) + begin, end - begin);
    });
  });
  return result;
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return gated(gate, up, [](const auto& kernels) { return kernels.swiglu; });
}

SwiGluGradients swiglu_backward(const at::Tensor& grad_output, const at::Tensor& gate,
                                const at::Tensor& up) {
  return gated_backward(grad_output, gate, up,
                        [](const auto& kernels) { return kernels.swiglu_backward; });
}

at::Tensor geglu(const at::Tensor& gate, const at::Tensor& up) {
  return gated(gate, up, [](const auto& kernels) { return kernels.geglu; });
}

SwiGluGradients geglu_backward(const at::Tensor& grad_output, const at::Tensor& gate,
                               const at::Tensor& up) {
  return gated_backward(grad_output, gate, up,
                        [](const auto& kernels) { return kernels.geglu_backward; });
}

at::Tensor bias_gelu(const at::Tensor& input, const at::Tensor& bias) {
  const int64_t width = bias.size(0);
  at::Tensor output = at::empty(input.sizes(), input.options());
  with_dtype(input, [&](auto type) {
    using T = decltype(type);
    for_rows(input.numel() / width, width, [&](int64_t begin, int64_t end) {
      kernels<T>().bias_gelu(data<T>(input), data<T>(bias), mutable_data<T>(output), width, begin,
                             end);
    });
  });
  return output;
}

BiasGeluGradients bias_gelu_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                     const at::Tensor& bias, bool wants_bias) {
  const int64_t width = bias.size(0);
  const at::Tensor grad = grad_output.contiguous();
  at::Tensor grad_input = at::empty(input.sizes(), input.options());
  const ColumnSums sums(wants_bias ? width : 0, input);
  with_dtype(input, [&](auto type) {
    using T = decltype(type);
    for_rows(input.numel() / width, width, [&](int64_t begin, int64_t end) {
      kernels<T>().bias_gelu_backward(data<T>(grad), data<T>(input), data<T>(bias),
                                      mutable_data<T>(grad_input), sums.of_thread(), width, begin,
                                      end);
    });
  });
  return {grad_input, wants_bias ? sums.total() : at::Tensor()};
}

// A table of angles for each head's vector: [B, N, T, H / 2], expanded, with numbers side by side.
at::Tensor angles(const at::Tensor& table, at::IntArrayRef sizes) {
  return (table.stride(-1) == 1 ? table : table.contiguous())
      .expand({sizes[0], sizes[1], sizes[2], sizes[3] / 2});
}

at::Tensor rotary(const at::Tensor& input, const at::Tensor& cosines, const at::Tensor& sines,
                  int direction) {
  const at::Tensor dense = input.stride(3) == 1 ? input : input.contiguous();
  at::Tensor output = at::empty(dense.sizes(), dense.options());
  const at::Tensor cosine = angles(cosines, dense.sizes()), sine = angles(sines, dense.sizes());
  with_dtype(dense, [&](auto type) {
    using T = decltype(type);
    const auto strides = [](const at::Tensor& tensor) {
      return typename RotaryRows<T>::Strides{tensor.stride(0), tensor.stride(1), tensor.stride(2)};
    };
    const RotaryRows<T> rows{.input = dense.const_data_ptr<T>(),
                             .cosine = cosine.const_data_ptr<float>(),
                             .sine = sine.const_data_ptr<float>(),
                             .input_strides = strides(dense),
                             .cosine_strides = strides(cosine),
                             .sine_strides = strides(sine),
                             .heads = dense.size(1),
                             .tokens = dense.size(2),
                             .half = dense.size(3) / 2,
                             .direction = static_cast<float>(direction)};
    for_rows(dense.size(0) * rows.heads * rows.tokens, dense.size(3),
             [&](int64_t begin, int64_t end) {
               kernels<T>().rotate(rows, mutable_data<T>(output), begin, end);
             });
  });
  return output;
}

}  // namespace

void add_activations(Backend& backend) {
  backend.swiglu = &swiglu;
  backend.swiglu_backward = &swiglu_backward;
  backend.geglu = &geglu;
  backend.geglu_backward = &geglu_backward;
  backend.bias_gelu = &bias_gelu;
  backend.bias_gelu_backward = &bias_gelu_backward;
  backend.rotary = &rotary;
}

}  // namespace sherd::ops::cpu
