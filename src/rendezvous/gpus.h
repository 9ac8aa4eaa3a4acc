#pragma once
// The GPUs of this host, and libsherd_cuda.so, which holds what the library needs of CUDA and NCCL.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "kernels/kernels.h"
#include "sherd/backend.h"
#include "storage/device.h"

namespace sherd::detail {

/// What libsherd_cuda.so has for the library.
struct CudaFunctions {
  /// True if its kernels, and LibTorch's, run on GPUs of this compute capability.
  bool (*serves)(int major, int minor);
  /// Makes a process group over NCCL, on streams of high priority. Collective.
  c10::intrusive_ptr<c10d::Backend> (*make_nccl_group)(const c10::intrusive_ptr<c10d::Store>& store,
                                                       int rank, int size,
                                                       std::chrono::milliseconds timeout);
  const kernels::DeviceKernels& (*kernels)();
  std::string (*last_nccl_error)() = nullptr;  ///< in this process
  std::string (*nccl_version)() = nullptr;     ///< "2.28.9"
  void (*set_sync_debug_mode)(SyncDebugMode mode) = nullptr;
  const DeviceFunctions* on_device = nullptr;
  /// True if LibTorch has found its part for GPUs, which it looks for once.
  bool (*is_found)() = nullptr;
  /// Initialises CUDA's state and LibTorch's allocators. Makes no context. Throws c10::Error if
  /// CUDA cannot be used.
  void (*initialize)() = nullptr;
  /// Makes a GPU the calling thread's, and initialises its context, its generator, and the streams
  /// and the handles of cuBLAS of this thread and of autograd's. After initialize().
  void (*initialize_device)(int number) = nullptr;
};

/// Returns those of the library that gpus() has loaded. Throws Error(Unavailable) if there is none.
[[nodiscard]] const CudaFunctions& cuda_functions();

/// Returns the device of the rank's number on its host, which becomes the calling thread's. Throws
/// Error(Unavailable) if there is none, and Error(OutOfMemory) if its memory is full.
[[nodiscard]] c10::Device device_of_rank(c10::DeviceType type, int local_rank);

struct SharedGpu {
  int rank = 0;   ///< of the world
  int other = 0;  ///< likewise
  std::string gpu;
};

/// Returns the first two ranks of a group that share a GPU, which NCCL refuses. `gpus`: UUIDs, by
/// rank of the world.
[[nodiscard]] std::optional<SharedGpu> shared_gpu(const std::vector<std::string>& gpus,
                                                  const RankGroup& group);

}  // namespace sherd::detail
