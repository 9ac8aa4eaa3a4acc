// What libsherd_cuda.so has for the library (rendezvous/gpus.h).

#include <cstdlib>

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "kernels/kernels.h"
#include "rendezvous/gpus.h"

namespace sherd::detail {
namespace {

// Made for each generation that the CUDA has, from Turing on or from Volta on, and as PTX for those
// to come (cmake/Cuda.cmake).
bool serves(int major, int minor) {
  constexpr int kOldestMinor = CUDART_VERSION < 13000 ? 0 : 5;
  return major > 7 || (major == 7 && minor >= kOldestMinor);
}

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size,
                                                  std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

// If NCCL fails, LibTorch's watchdog is to end what waits for it, and not the process: the rank
// says what happened. Nor is it to write traces first, for a minute. The user's own settings stay,
// and so does the watchdog's monitor: if ncclCommAbort() hangs, nothing else would end the process.
void set_watchdog() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", std::to_string(c10d::CleanUpOnly).c_str(), 0);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 0);
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", 0);
}

// The only place that initialises what LibTorch otherwise initialises on first use: Sherd calls its
// allocator directly, and a handle that is made inside a captured graph is late.
void initialize() {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  static_cast<void>(at::getHostAllocator(c10::kCUDA));
}

// Streams and handles are each thread's own.
void initialize_thread() {
  static_cast<void>(c10::cuda::getCurrentCUDAStream());
  static_cast<void>(at::cuda::getCurrentCUDABlasHandle());
  static_cast<void>(at::cuda::getCurrentCUDABlasLtHandle());
}

// Backward runs on a thread that autograd keeps for each GPU.
struct OnAutogradsThread : torch::autograd::Function<OnAutogradsThread> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& one) {
    return one.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list gradients) {
    initialize_thread();
    return gradients;
  }
};

void initialize_device(int number) {
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(number));
  c10::cuda::set_device(device.index());
  static_cast<void>(at::globalContext().defaultGenerator(device));
  initialize_thread();
  const c10::InferenceMode no_inference(false);
  const at::AutoGradMode records(true);
  const at::Tensor one =
      at::ones({}, c10::TensorOptions(at::kFloat).device(device)).set_requires_grad(true);
  OnAutogradsThread::apply(one).backward();
}

void set_sync_debug_mode(SyncDebugMode mode) {
  using c10::cuda::SyncDebugMode::L_DISABLED;
  using c10::cuda::SyncDebugMode::L_ERROR;
  using c10::cuda::SyncDebugMode::L_WARN;
  c10::cuda::warning_state().set_sync_debug_mode(mode == SyncDebugMode::Error  ? L_ERROR
                                                 : mode == SyncDebugMode::Warn ? L_WARN
                                                                               : L_DISABLED);
}

at::cuda::CUDAGraph& graph_of(void* graph) {
  return *static_cast<at::cuda::CUDAGraph*>(graph);
}

// Captures are of the capturing thread alone: NCCL's watchdog goes on to ask for events of its own.
constexpr DeviceFunctions kOnDevice = {
    .begin_capture = [](const std::shared_ptr<void>& other) -> std::shared_ptr<void> {
      auto graph = std::make_shared<at::cuda::CUDAGraph>();
      const auto pool =
          other == nullptr ? at::cuda::graph_pool_handle() : graph_of(other.get()).pool();
      graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
      return graph;
    },
    .end_capture = [](void* graph) { graph_of(graph).capture_end(); },
    .launch = [](void* graph) { graph_of(graph).replay(); },
    .capture_of = [](const c10::Stream& stream) -> std::uint64_t {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      unsigned long long number = 0;  // NOLINT(google-runtime-int): CUDA's
      C10_CUDA_CHECK(
          cudaStreamGetCaptureInfo(c10::cuda::CUDAStream(stream).stream(), &status, &number));
      return status == cudaStreamCaptureStatusNone ? 0 : number;
    },
    .pin =
        [](void* data, std::int64_t bytes) {
          const bool pinned = cudaHostRegister(data, static_cast<std::size_t>(bytes),
                                               cudaHostRegisterPortable) == cudaSuccess;
          static_cast<void>(cudaGetLastError());  // the refusal is the caller's to report
          return pinned;
        },
    .unpin =
        [](void* data) {
          static_cast<void>(cudaHostUnregister(data));
          static_cast<void>(cudaGetLastError());
        }};

}  // namespace
}  // namespace sherd::detail

extern "C" const sherd::detail::CudaFunctions* sherd_cuda_functions() {
  static const sherd::detail::CudaFunctions functions = [] {
    sherd::detail::set_watchdog();
    return sherd::detail::CudaFunctions{
        .serves = &sherd::detail::serves,
        .make_nccl_group = &sherd::detail::make_nccl_group,
        .kernels = &sherd::cuda::device_kernels,
        .last_nccl_error =
            [] { return c10d::getNcclErrorDetailStr(ncclRemoteError, std::nullopt); },
        .nccl_version = [] { return c10d::getNcclVersion(); },
        .set_sync_debug_mode = &sherd::detail::set_sync_debug_mode,
        .on_device = &sherd::detail::kOnDevice,
        .is_found = [] { return at::hasCUDA(); },
        .initialize = &sherd::detail::initialize,
        .initialize_device = &sherd::detail::initialize_device};
  }();
  return &functions;
}
