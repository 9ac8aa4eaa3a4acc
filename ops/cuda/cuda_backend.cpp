#include "ops/cuda/cuda_backend.h"

namespace sherd::ops::cuda {

Backend cuda_backend(const Backend& plain) {
  Backend backend = plain;
  backend.name = "cuda";
  backend.joins_products = true;
  add_products(backend);
  add_attention(backend);
  add_norms(backend);
  add_activations(backend);
  add_cross_entropy(backend);
  return backend;
}

}  // namespace sherd::ops::cuda
