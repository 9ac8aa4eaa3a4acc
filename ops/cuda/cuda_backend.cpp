#include "ops/cuda/cuda_backend.h"

#include "ops/cuda/plain_uses.h"

namespace sherd::ops::cuda {

Backend cuda_backend(const Backend& plain) {
  Backend backend = plain;
  backend.name = "cuda";
  backend.joins_products = true;
  backend.plain_uses = &noted_plain_uses;
  add_products(backend);
  add_attention(backend);
  add_norms(backend);
  add_activations(backend);
  add_cross_entropy(backend);
  return backend;
}

}  // namespace sherd::ops::cuda
