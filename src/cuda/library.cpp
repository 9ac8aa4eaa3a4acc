// What libsherd_cuda.so has for the library (world/cuda_library.h).

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "cuda/launches.h"
#include "world/cuda_library.h"

namespace sherd::detail {
namespace {

// Made for each generation from Turing on, and as PTX for those to come.
bool serves(int major, int minor) {
  return major > 7 || (major == 7 && minor >= 5);
}

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size,
                                                  std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace
}  // namespace sherd::detail

extern "C" const sherd::detail::CudaFunctions* sherd_cuda_functions() {
  static const sherd::detail::CudaFunctions functions = {
      &sherd::detail::serves, &sherd::detail::make_nccl_group, &sherd::cuda::device_kernels};
  return &functions;
}
