#include "ops/plain/plain_backend.h"

namespace sherd::ops::plain {

Backend plain_backend() {
  Backend backend = {};
  backend.name = "plain";
  add_products(backend);
  add_dropout(backend);
  add_attention(backend);
  add_norms(backend);
  add_activations(backend);
  add_cross_entropy(backend);
  return backend;
}

}  // namespace sherd::ops::plain
