#include "ops/shared/inference_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include "ops/backend.h"
#include "ops/shared/matrix.h"
#include "ops/shared/recorded.h"

namespace sherd::ops {

at::Tensor inference_linear(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
  RECORD_FUNCTION("sherd::inference_linear", Recorded({input, weight}));
  const Backend& backend = backend_of(input);
  const at::Tensor matrix = as_matrix(input);
  at::Tensor product = at::empty({matrix.size(0), weight.size(0)}, matrix.options());
  const bool is_few = matrix.size(0) > 0 && matrix.size(0) <= backend.few_rows();
  if (is_few && weight.is_contiguous()) {
    backend.few_rows_product(product, matrix.contiguous(), weight, bias.value_or(at::Tensor()));
  } else if (bias) {
    backend.addmm(product, *bias, matrix, weight.t());
  } else {
    backend.mm(product, matrix, weight.t());
  }
  return with_leading_sizes(product, input.sizes());
}

}  // namespace sherd::ops
