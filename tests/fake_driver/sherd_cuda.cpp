// A libsherd_cuda.so without CUDA: what the library asks of it before anything is computed.

#include "src/world/cuda_library.h"

extern "C" const sherd::detail::CudaFunctions* sherd_cuda_functions() {
  static const sherd::detail::CudaFunctions functions = {
      [](int major, int minor) { return major * 10 + minor >= 75; }, nullptr,
      []() -> const sherd::kernels::DeviceKernels& {
        static const sherd::kernels::DeviceKernels none = {};
        return none;
      }};
  return &functions;
}
