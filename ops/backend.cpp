#include "ops/backend.h"

#include "ops/cpu/cpu_backend.h"
#include "ops/cuda_library.h"
#include "ops/plain/plain_backend.h"
#include "ops/plain_operators.h"
#include "ops/with_backend.h"

namespace sherd::ops {
namespace {

constexpr const char* kBackend = "backend";

}  // namespace

const Backend& backend_of(const at::Tensor& tensor) {
  static const Backend plain = plain::plain_backend();
  static const Backend cpu = cpu::cpu_backend(plain);
  if (const Backend* const chosen = WithBackend::current()) {
    return *chosen;
  }
  if (PlainOperators::active()) {
    return plain;
  }
  if (tensor.is_cuda()) {
    static const Backend cuda = backend_of_cuda_library(plain);
    return cuda;
  }
  return cpu::serves(tensor) ? cpu : plain;
}

const Backend& choose_backend(torch::autograd::AutogradContext& context, const at::Tensor& tensor) {
  const Backend& backend = backend_of(tensor);
  context.saved_data[kBackend] = static_cast<int64_t>(reinterpret_cast<intptr_t>(&backend));
  return backend;
}

const Backend& chosen_backend(const torch::autograd::AutogradContext& context) {
  const int64_t kept = context.saved_data.at(kBackend).toInt();
  return *reinterpret_cast<const Backend*>(static_cast<intptr_t>(kept));
}

}  // namespace sherd::ops
