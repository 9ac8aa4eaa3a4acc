// SwiGLU, GeGLU, GELU with a bias, and rotation of heads, of tensors.

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include <ATen/ops/empty.h>

#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/plain_uses.h"

namespace sherd::ops::cuda {
namespace {

constexpr int64_t kMostPacks = std::numeric_limits<uint32_t>::max();  // that 32 bits count

// Gate and up as kernels read them: dense ones as one row, or columns of matrices.
struct GateAndUp {
  at::Tensor gate;
  at::Tensor up;
  int64_t width = 0;
  int64_t stride = 0;
};

bool are_packed_columns(const at::Tensor& gate, const at::Tensor& up) {
  return has_kernels(gate) && up.scalar_type() == gate.scalar_type() && gate.dim() == 2 &&
         gate.strides() == up.strides() && gate.stride(1) == 1 && is_aligned(gate) &&
         is_aligned(up) && fits_packs(gate, gate.size(1)) && fits_packs(gate, gate.stride(0));
}

// None where no kernel reads them.
std::optional<GateAndUp> gate_and_up_of(const at::Tensor& gate, const at::Tensor& up) {
  const int64_t numel = gate.numel();
  const bool are_dense = gate.is_contiguous() && up.is_contiguous();
  const GateAndUp rows = !are_dense && are_packed_columns(gate, up)
                             ? GateAndUp{gate, up, gate.size(1), gate.stride(0)}
                             : GateAndUp{gate.contiguous(), up.contiguous(), numel, numel};
  const bool is_served = rows.width < numel || are_packed({rows.gate, rows.up});
  return is_served && fits_packs(gate, rows.width) &&
                 numel / pack_count(dtype_of(gate)) < kMostPacks
             ? std::optional(rows)
             : std::nullopt;
}

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up, bool is_gelu) {
  const auto rows = gate_and_up_of(gate, up);
  if (!rows) {
    note_plain_use(is_gelu ? "geglu" : "swiglu", reason_of(gate, gate.size(-1)));
    return is_gelu ? plain_backend().geglu(gate, up) : plain_backend().swiglu(gate, up);
  }
  at::Tensor output = at::empty(gate.sizes(), gate.options());
  on_device_of(gate, [&](StreamHandle stream) {
    launch_swiglu(dtype_of(gate), stream,
                  {.gate = data(rows->gate),
                   .up = data(rows->up),
                   .out = mutable_data(output),
                   .numel = gate.numel(),
                   .width = rows->width,
                   .stride = rows->stride,
                   .is_gelu = is_gelu});
  });
  return output;
}

// Of columns, columns of one matrix: one product takes both.
SwiGluGradients room_for_gradients(const GateAndUp& of) {
  if (of.gate.is_contiguous()) {
    return {at::empty(of.gate.sizes(), of.gate.options()),
            at::empty(of.gate.sizes(), of.gate.options())};
  }
  const at::Tensor both = at::empty({of.gate.size(0), 2 * of.width}, of.gate.options());
  return {both.narrow(1, 0, of.width), both.narrow(1, of.width, of.width)};
}

SwiGluGradients gated_backward(const at::Tensor& grad_output, const at::Tensor& gate,
                               const at::Tensor& up, bool is_gelu) {
  const at::Tensor grad = grad_output.contiguous();
  const auto rows = gate_and_up_of(gate, up);
  if (!rows || !are_packed({grad}) || grad.scalar_type() != gate.scalar_type()) {
    note_plain_use(is_gelu ? "geglu_backward" : "swiglu_backward", reason_of(gate, gate.size(-1)));
    return is_gelu ? plain_backend().geglu_backward(grad, gate, up)
                   : plain_backend().swiglu_backward(grad, gate, up);
  }
  const SwiGluGradients result = room_for_gradients(*rows);
  on_device_of(gate, [&](StreamHandle stream) {
    launch_swiglu_backward(
        dtype_of(gate), stream,
        {.grad = data(grad),
         .gate = data(rows->gate),
         .up = data(rows->up),
         .grad_gate = mutable_data(result.gate),
         .grad_up = mutable_data(result.up),
         .numel = gate.numel(),
         .width = rows->width,
         .stride = rows->stride,
         .grad_stride = result.gate.is_contiguous() ? rows->width : result.gate.stride(0),
         .is_gelu = is_gelu});
  });
  return result;
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return gated(gate, up, /*is_gelu=*/false);
}

SwiGluGradients swiglu_backward(const at::Tensor& grad_output, const at::Tensor& gate,
                                const at::Tensor& up) {
  return gated_backward(grad_output, gate, up, /*is_gelu=*/false);
}

at::Tensor geglu(const at::Tensor& gate, const at::Tensor& up) {
  return gated(gate, up, /*is_gelu=*/true);
}

SwiGluGradients geglu_backward(const at::Tensor& grad_output, const at::Tensor& gate,
                               const at::Tensor& up) {
  return gated_backward(grad_output, gate, up, /*is_gelu=*/true);
}

bool serves_bias_gelu(at::TensorList tensors, const at::Tensor& bias) {
  return are_packed(tensors) && are_packed({tensors.front(), bias}) &&
         fits_packs(bias, bias.size(0));
}

at::Tensor bias_gelu(const at::Tensor& input, const at::Tensor& bias) {
  if (!serves_bias_gelu({input}, bias)) {
    note_plain_use("bias_gelu", reason_of(input, bias.size(0)));
    return plain_backend().bias_gelu(input, bias);
  }
  at::Tensor output = at::empty(input.sizes(), input.options());
  on_device_of(input, [&](StreamHandle stream) {
    launch_bias_gelu(dtype_of(input), stream, data(input), data(bias), mutable_data(output),
                     input.numel(), bias.size(0));
  });
  return output;
}

BiasGeluGradients bias_gelu_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                     const at::Tensor& bias, bool wants_bias) {
  const at::Tensor grad = grad_output.contiguous();
  if (!serves_bias_gelu({input, grad}, bias)) {
    note_plain_use("bias_gelu_backward", reason_of(input, bias.size(0)));
    return plain_backend().bias_gelu_backward(grad, input, bias, wants_bias);
  }
  const int64_t width = bias.size(0), rows = input.numel() / width;
  at::Tensor grad_input = at::empty(input.sizes(), input.options());
  const at::Tensor parts = room_for_parts(wants_bias, sum_parts(rows), width, input);
  on_device_of(input, [&](StreamHandle stream) {
    launch_bias_gelu_backward(dtype_of(input), stream,
                              {.grad = data(grad),
                               .input = data(input),
                               .bias = data(bias),
                               .grad_input = mutable_data(grad_input),
                               .bias_parts = mutable_data<float>(parts),
                               .rows = rows,
                               .columns = width});
  });
  return {grad_input, sum_of_parts(parts)};
}

using Strides = RotaryHeads<void>::Strides;
Strides strides_of(const at::Tensor& heads) {
  return {heads.stride(0), heads.stride(1), heads.stride(2)};
}

// Whether each head [.., H], or each token's angles, begin with a pack and are whole packs.
bool has_packed_rows(const at::Tensor& heads, int64_t count) {
  const auto fits = [count](int64_t values) { return values % count == 0; };
  return is_aligned(heads) && heads.stride(3) == 1 && fits(heads.size(3)) &&
         std::all_of(heads.strides().begin(), heads.strides().begin() + 3, fits);
}

bool serves_rotary(const at::Tensor& heads, const at::Tensor& cosine, const at::Tensor& sine) {
  const bool has_tables = cosine.scalar_type() == at::kFloat && sine.scalar_type() == at::kFloat;
  if (!has_kernels(heads) || !has_tables || cosine.strides() != sine.strides()) {
    return false;
  }
  const int64_t count = pack_count(dtype_of(heads));
  return heads.numel() / count < kMostPacks && has_packed_rows(heads, count) &&
         cosine.size(3) % count == 0 && has_packed_rows(cosine, pack_count(Dtype::Float)) &&
         has_packed_rows(sine, pack_count(Dtype::Float));
}

at::Tensor rotary(const at::Tensor& input, const at::Tensor& cosines, const at::Tensor& sines,
                  int direction) {
  const std::vector<int64_t> angles = {input.size(0), input.size(1), input.size(2),
                                       input.size(3) / 2};
  const at::Tensor cosine = cosines.expand(angles), sine = sines.expand(angles);
  if (!serves_rotary(input, cosine, sine)) {
    note_plain_use("rotary", reason_of(input, input.size(3) / 2));
    return plain_backend().rotary(input, cosines, sines, direction);
  }
  at::Tensor output = at::empty(input.sizes(), input.options());
  const RotaryHeads<void> heads{.input = data(input),
                                .cosine = cosine.const_data_ptr<float>(),
                                .sine = sine.const_data_ptr<float>(),
                                .out = mutable_data(output),
                                .input_strides = strides_of(input),
                                .table_strides = strides_of(cosine),
                                .batch = input.size(0),
                                .heads = input.size(1),
                                .tokens = input.size(2),
                                .half = static_cast<int>(input.size(3) / 2),
                                .direction = static_cast<float>(direction)};
  on_device_of(input, [&](StreamHandle stream) { launch_rotary(dtype_of(input), stream, heads); });
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

}  // namespace sherd::ops::cuda
