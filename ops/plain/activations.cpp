// SwiGLU, GeGLU, GELU with a bias, and rotation of heads.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "ops/plain/plain_backend.h"
#include "ops/shared/gradient.h"

namespace sherd::ops::plain {
namespace {

constexpr const char* kTanh = "tanh";

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return at::silu(gate.contiguous()).mul_(up);
}

SwiGluGradients swiglu_backward(const at::Tensor& grad_output, const at::Tensor& gate,
                                const at::Tensor& up) {
  return {at::silu_backward(grad_output * up, gate), at::silu(gate).mul_(grad_output)};
}

at::Tensor geglu(const at::Tensor& gate, const at::Tensor& up) {
  return at::gelu(gate.contiguous(), kTanh).mul_(up);
}

SwiGluGradients geglu_backward(const at::Tensor& grad_output, const at::Tensor& gate,
                               const at::Tensor& up) {
  return {at::gelu_backward(grad_output * up, gate, kTanh),
          at::gelu(gate, kTanh).mul_(grad_output)};
}

at::Tensor wide_sum(const at::Tensor& input, const at::Tensor& bias) {
  return input.to(statistics_dtype(input.scalar_type())) + bias;
}

at::Tensor bias_gelu(const at::Tensor& input, const at::Tensor& bias) {
  return at::gelu(wide_sum(input, bias), kTanh).to(input.scalar_type());
}

BiasGeluGradients bias_gelu_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                     const at::Tensor& bias, bool wants_bias) {
  const at::Tensor sum = wide_sum(input, bias);
  const at::Tensor grad = at::gelu_backward(grad_output.to(sum.scalar_type()), sum, kTanh);
  return {grad.to(input.scalar_type()),
          wants_bias ? grad.reshape({-1, bias.size(0)}).sum(0) : at::Tensor()};
}

at::Tensor rotary(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine,
                  int direction) {
  const auto dtype = input.scalar_type();
  const at::Tensor wide = input.to(statistics_dtype(dtype));
  at::Tensor output = at::empty(wide.sizes(), wide.options());
  const int64_t half = wide.size(-1) / 2;
  const at::Tensor first = wide.narrow(-1, 0, half);
  const at::Tensor second = wide.narrow(-1, half, half);
  at::Tensor out_first = output.narrow(-1, 0, half);
  at::Tensor out_second = output.narrow(-1, half, half);
  at::mul_out(out_first, first, cosine).addcmul_(second, sine, -direction);
  at::mul_out(out_second, second, cosine).addcmul_(first, sine, direction);
  return output.to(dtype);
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

}  // namespace sherd::ops::plain
