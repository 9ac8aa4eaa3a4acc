// The back end for GPUs as the library has it that a program loads.

#include "ops/cuda_library.h"
#include "ops/plain/plain_backend.h"
#include "tests/ops/cuda/tested.h"

namespace sherd::ops::cuda::test {

const Backend& tested_backend() {
  static const Backend backend = backend_of_cuda_library(plain::plain_backend());
  return backend;
}

c10::Device tested_device() {
  return c10::kCUDA;
}

}  // namespace sherd::ops::cuda::test
