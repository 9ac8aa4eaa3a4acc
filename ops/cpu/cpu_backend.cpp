#include "ops/cpu/cpu_backend.h"

namespace sherd::ops::cpu {

bool serves(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return (tensor.is_cpu() || tensor.is_meta()) &&
         (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf);
}

Backend cpu_backend(const Backend& plain) {
  Backend backend = plain;
  backend.name = "cpu";
  add_products(backend);
  add_few_rows(backend);
  add_dropout(backend);
  add_quantized(backend);
  add_attention(backend);
  add_norms(backend);
  add_activations(backend);
  add_cross_entropy(backend);
  return backend;
}

}  // namespace sherd::ops::cpu
