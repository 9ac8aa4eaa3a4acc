// What libsherd_ops_cuda.so has for those who load it (ops/cuda_library.h): one function.

#include "ops/cuda/cuda_backend.h"

extern "C" void sherd_ops_cuda(sherd::ops::Backend& backend) {
  backend = sherd::ops::cuda::cuda_backend(backend);
}
