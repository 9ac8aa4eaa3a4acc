#include "ops/shared/inference_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include "ops/backend.h"
#include "ops/q8_0.h"
#include "ops/shared/matrix.h"
#include "ops/shared/recorded.h"
#include "ops/shared/weight_products.h"

namespace sherd::ops {

at::Tensor inference_linear(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
  RECORD_FUNCTION("sherd::inference_linear", Recorded({input, recorded_weight(weight)}));
  const Backend& backend = backend_of(input);
  const at::Tensor matrix = as_matrix(input);
  at::Tensor product = at::empty({matrix.size(0), outputs_of(weight)}, matrix.options());
  const bool is_few = matrix.size(0) > 0 && matrix.size(0) <= backend.few_rows();
  if (is_few && weight.is_contiguous() && !q8_0::is_quantized(weight)) {
    backend.few_rows_product(product, matrix.contiguous(), weight, bias.value_or(at::Tensor()));
  } else {
    write_weight_product(backend, product, matrix, weight, bias.value_or(at::Tensor()));
  }
  return with_leading_sizes(product, input.sizes());
}

}  // namespace sherd::ops
