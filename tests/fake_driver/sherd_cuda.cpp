// A libsherd_cuda.so without CUDA: what the library asks of it before anything is computed.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "src/world/cuda_library.h"

namespace {

// What a thread that waits in NCCL uses must not go.
struct Nccl {
  ~Nccl() {
    if (waiting) {
      std::abort();
    }
  }
  std::atomic<bool> waiting = false;
} nccl;

// Rank 1 cannot, and the others wait for it for ever.
c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                          int rank, int /*size*/,
                                          std::chrono::milliseconds /*timeout*/) {
  if (rank == 1) {
    throw std::runtime_error("the test has it so");
  }
  nccl.waiting = true;
  for (;;) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

}  // namespace

extern "C" const sherd::detail::CudaFunctions* sherd_cuda_functions() {
  static const sherd::detail::CudaFunctions functions = {
      .serves = [](int major, int minor) { return major * 10 + minor >= 75; },
      .make_nccl_group = &connect,
      .kernels = []() -> const sherd::kernels::DeviceKernels& {
        static const sherd::kernels::DeviceKernels none = {};
        return none;
      },
      .is_found = [] { return std::getenv("FAKE_CUDA_NOT_FOUND") == nullptr; },
      .set_device = [](int /*number*/) {}};
  return &functions;
}
