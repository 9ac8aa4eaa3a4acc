// A libsherd_cuda.so without CUDA: what the library asks of it before anything is computed.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "src/rendezvous/gpus.h"

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

// What the library initialises is counted, in its order; FAKE_CUDA_INITIALIZE=0 fails.
bool is_initialized = false;

void note(const std::string& what) {
  if (const char* const path = std::getenv("FAKE_CUDA_NOTES")) {
    std::ofstream(path, std::ios::app) << what << '\n';
  }
}

void initialize() {
  if (const char* const asked = std::getenv("FAKE_CUDA_INITIALIZE"); asked && *asked == '0') {
    throw std::runtime_error("CUDA error: the test has it so");
  }
  is_initialized = true;
  note("CUDA");
}

void initialize_device(int number) {
  if (!is_initialized) {
    throw std::logic_error("a device before CUDA");
  }
  note("GPU " + std::to_string(number));
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
      .initialize = &initialize,
      .initialize_device = &initialize_device};
  return &functions;
}
