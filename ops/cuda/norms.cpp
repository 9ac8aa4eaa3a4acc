// RMSNorm and LayerNorm of tensors.

#include <string>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/plain_uses.h"

namespace sherd::ops::cuda {
namespace {

bool serves(at::TensorList rows, const NormParameters& of) {
  const int64_t width = of.weight.size(0);
  return are_packed(rows) && are_packed({rows.front(), of.weight, of.bias}) &&
         fits_packs(of.weight, width) && width <= widest_norm(dtype_of(of.weight));
}

std::string reason_of_norm(const NormParameters& of) {
  const int64_t width = of.weight.size(0);
  const bool is_too_wide = has_kernels(of.weight) && width > widest_norm(dtype_of(of.weight));
  return is_too_wide ? "rows of " + std::to_string(width) + " values are wider than " +
                           std::to_string(widest_norm(dtype_of(of.weight)))
                     : reason_of(of.weight, width);
}

// The plain back end's statistics, [2, ..., 1], so that either back end's backward reads the
// other's.
at::Tensor room_for_statistics(const at::Tensor& input) {
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = 1;
  sizes.insert(sizes.begin(), 2);
  return at::empty(sizes, input.options().dtype(at::kFloat));
}

// The weight as kernels read it. In fp32 nothing is rounded before the weight is applied, so the
// kernel of the other norms serves: with 1 + w where it counts from 1.
struct AppliedWeight {
  explicit AppliedWeight(const NormParameters& of) : weight(of.weight) {
    const bool from_one = of.gain == RmsGain::OnePlus;
    if (weight.scalar_type() != at::kFloat) {
      is_wide = of.gain != RmsGain::Rounded;
      offset = from_one ? 1.0F : 0.0F;
    } else if (from_one) {
      weight = at::add(weight, 1);
    }
  }
  at::Tensor weight;
  bool is_wide = false;
  float offset = 0;
};

NormOutput norm(const NormInputs& inputs, const NormParameters& of) {
  const at::Tensor& input = inputs.input;
  if (!serves({input, inputs.residual}, of)) {
    note_plain_use("norm", reason_of_norm(of));
    return plain_backend().norm(inputs, of);
  }
  const int64_t width = of.weight.size(0);
  const bool has_residual = inputs.residual.defined();
  const NormOutput out{has_residual ? at::empty(input.sizes(), input.options()) : input,
                       at::empty(input.sizes(), input.options()), room_for_statistics(input)};
  const AppliedWeight applied(of);
  const NormRows<void> rows{.input = data(input),
                            .residual = data(inputs.residual),
                            .weight = data(applied.weight),
                            .bias = data(of.bias),
                            .sum = has_residual ? mutable_data(out.sum) : nullptr,
                            .normalised = mutable_data(out.normalised),
                            .statistics = mutable_data<float>(out.statistics),
                            .rows = input.numel() / width,
                            .width = static_cast<int>(width),
                            .epsilon = static_cast<float>(of.epsilon),
                            .is_wide = applied.is_wide,
                            .offset = applied.offset};
  on_device_of(input, [&](StreamHandle stream) {
    launch_norm(dtype_of(input), stream, rows, of.is_layer_norm());
  });
  return out;
}

NormInputGradients norm_backward(const NormGradients& gradients, const at::Tensor& sum,
                                 const NormParameters& of, const at::Tensor& statistics,
                                 WantedGradients wanted) {
  if (!serves({sum, gradients.normalised, gradients.sum}, of)) {
    note_plain_use("norm_backward", reason_of_norm(of));
    return plain_backend().norm_backward(gradients, sum, of, statistics, wanted);
  }
  const int64_t width = of.weight.size(0), rows = sum.numel() / width;
  const Dtype dtype = dtype_of(sum);
  const bool is_wide = norm_row_warps(dtype, width) == 0;
  const int64_t parts = norm_parts(dtype, rows, width);
  const at::Tensor grad_input = at::empty(sum.sizes(), sum.options());
  const at::Tensor weight_parts = room_for_parts(wanted.weight, parts, width, sum);
  const at::Tensor bias_parts = room_for_parts(wanted.bias && !is_wide, parts, width, sum);
  const AppliedWeight applied(of);
  const NormBackwardRows<void> arguments{.grad = data(gradients.normalised),
                                         .grad_sum = data(gradients.sum),
                                         .sum = data(sum),
                                         .weight = data(applied.weight),
                                         .statistics = statistics.const_data_ptr<float>(),
                                         .grad_input = mutable_data(grad_input),
                                         .weight_parts = mutable_data<float>(weight_parts),
                                         .bias_parts = mutable_data<float>(bias_parts),
                                         .rows = rows,
                                         .width = static_cast<int>(width),
                                         .is_wide = applied.is_wide,
                                         .offset = applied.offset};
  on_device_of(sum, [&](StreamHandle stream) {
    launch_norm_backward(dtype, stream, arguments, of.is_layer_norm());
  });
  const at::Tensor grad_bias = wanted.bias && is_wide
                                   ? sum_of_rows(gradients.normalised.view({rows, width}))
                                   : sum_of_parts(bias_parts);
  return {grad_input, sum_of_parts(weight_parts), grad_bias};
}

}  // namespace

void add_norms(Backend& backend) {
  backend.norm = &norm;
  backend.norm_backward = &norm_backward;
}

}  // namespace sherd::ops::cuda
