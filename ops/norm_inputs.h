#pragma once
// What RMSNorm and LayerNorm, alone and with a residual, have in common around their formulas.

#include <optional>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/variable.h>

#include "ops/cpu/dispatch.h"

namespace sherd::ops {

/// What is normalised: the input, or input + residual.
struct NormInputs {
  at::Tensor input;
  at::Tensor residual;  ///< undefined without one
  at::Tensor sum;       ///< of `fast` inputs filled by the loop, row by row

  NormInputs(const at::Tensor& first, const std::optional<at::Tensor>& second, bool fast)
      : input(fast ? first.contiguous() : first) {
    if (!second) {
      sum = input;
    } else if (fast) {
      residual = second->contiguous();
      sum = at::empty(input.sizes(), input.options());
    } else {
      sum = input + *second;
    }
  }

  template <class T>
  [[nodiscard]] cpu::NormTerms<T> terms() const {
    return {cpu::data<T>(input), cpu::data<T>(residual),
            residual.defined() ? sum.mutable_data_ptr<T>() : nullptr};
  }
};

/// What comes back: through the norm, and through the sum where it was handed out and used.
struct NormGradients {
  at::Tensor normalised;
  at::Tensor sum;  ///< undefined for none

  NormGradients(const torch::autograd::variable_list& gradients, const at::Tensor& like)
      : normalised(gradients[0].defined() ? gradients[0].contiguous() : at::zeros_like(like)),
        sum(gradients.size() == 2 && gradients[1].defined() ? gradients[1].contiguous()
                                                            : at::Tensor()) {}

  [[nodiscard]] at::Tensor with_sum(const at::Tensor& grad) const {
    return sum.defined() ? grad + sum : grad;
  }
};

}  // namespace sherd::ops
