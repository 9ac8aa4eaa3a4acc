// RMSNorm and LayerNorm of tensors.

#include <ATen/ops/empty.h>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/dispatch.h"

namespace sherd::ops::cpu {
namespace {

// Statistics [rows, 2] are mean and 1 ÷ deviation, [rows, 1] 1 ÷ rms.
NormOutput norm(const NormInputs& inputs, const NormParameters& of) {
  const int64_t width = of.weight.size(0), rows = inputs.input.numel() / width;
  const auto options = inputs.input.options();
  NormOutput out;
  out.sum = inputs.residual.defined() ? at::empty(inputs.input.sizes(), options) : inputs.input;
  out.normalised = at::empty(inputs.input.sizes(), options);
  out.statistics = at::empty({rows, of.is_layer_norm() ? 2 : 1}, options.dtype(at::kFloat));
  const auto epsilon = static_cast<float>(of.epsilon);
  with_dtype(inputs.input, [&](auto type) {
    using T = decltype(type);
    const NormTerms<T> terms{data<T>(inputs.input), data<T>(inputs.residual),
                             inputs.residual.defined() ? mutable_data<T>(out.sum) : nullptr};
    for_rows(rows, width, [&](int64_t begin, int64_t end) {
      if (of.is_layer_norm()) {
        kernels<T>().layer_norm(terms, data<T>(of.weight), data<T>(of.bias), epsilon,
                                mutable_data<T>(out.normalised),
                                mutable_data<float>(out.statistics), width, begin, end);
      } else {
        kernels<T>().rms_norm(of.gain, terms, data<T>(of.weight), epsilon,
                              mutable_data<T>(out.normalised), mutable_data<float>(out.statistics),
                              width, begin, end);
      }
    });
  });
  return out;
}

NormInputGradients norm_backward(const NormGradients& gradients, const at::Tensor& sum,
                                 const NormParameters& of, const at::Tensor& statistics,
                                 WantedGradients wanted) {
  const int64_t width = of.weight.size(0);
  NormInputGradients result{at::empty(sum.sizes(), sum.options()), {}, {}};
  const ColumnSums of_weight(wanted.weight ? width : 0, sum), of_bias(wanted.bias ? width : 0, sum);
  with_dtype(sum, [&](auto type) {
    using T = decltype(type);
    for_rows(statistics.size(0), width, [&](int64_t begin, int64_t end) {
      if (of.is_layer_norm()) {
        kernels<T>().layer_norm_backward(data<T>(gradients.normalised), data<T>(gradients.sum),
                                         data<T>(sum), data<T>(of.weight), data<float>(statistics),
                                         mutable_data<T>(result.sum), of_weight.of_thread(),
                                         of_bias.of_thread(), width, begin, end);
      } else {
        kernels<T>().rms_norm_backward(of.gain, data<T>(gradients.normalised),
                                       data<T>(gradients.sum), data<T>(sum), data<T>(of.weight),
                                       data<float>(statistics), mutable_data<T>(result.sum),
                                       of_weight.of_thread(), width, begin, end);
      }
    });
  });
  result.weight = wanted.weight ? of_weight.total() : at::Tensor();
  result.bias = wanted.bias ? of_bias.total() : at::Tensor();
  return result;
}

}  // namespace

void add_norms(Backend& backend) {
  backend.norm = &norm;
  backend.norm_backward = &norm_backward;
}

}  // namespace sherd::ops::cpu
