#pragma once
// libsherd_cuda.so: what the library needs of CUDA and NCCL, in a library of its own, so that all
// else is compiled once for machines with GPUs and without.

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "kernels/kernels.h"
#include "sherd/backend.h"
#include "storage/device_graph.h"
#include "storage/pinned_buffer.h"

namespace sherd::detail {

/// What it has for others.
struct CudaFunctions {
  /// Whether its kernels, and LibTorch's, run on GPUs of this compute capability.
  bool (*serves)(int major, int minor);
  /// A process group over NCCL, on streams of high priority. Collective.
  c10::intrusive_ptr<c10d::Backend> (*make_nccl_group)(const c10::intrusive_ptr<c10d::Store>& store,
                                                       int rank, int size,
                                                       std::chrono::milliseconds timeout);
  /// For arithmetic on shards (set_device_kernels() in kernels/shard_math.h).
  const kernels::DeviceKernels& (*kernels)();
  /// What NCCL said last in this process.
  std::string (*last_nccl_error)() = nullptr;
  /// "2.28.9"
  std::string (*nccl_version)() = nullptr;
  /// Of memory of the host.
  const HostPinning* pinning = nullptr;
  /// As sherd::set_sync_debug_mode().
  void (*set_sync_debug_mode)(SyncDebugMode mode) = nullptr;
  const GraphFunctions* graphs = nullptr;
  /// Whether LibTorch has found its part for GPUs, which it looks for once.
  bool (*is_found)() = nullptr;
  /// Initialises what LibTorch initialises lazily and what no GPU of its own: CUDA's state and the
  /// allocators. Makes no context. Throws c10::Error where CUDA cannot be used.
  void (*initialize)() = nullptr;
  /// Makes a GPU the calling thread's, and initialises what LibTorch initialises lazily of each:
  /// its context, its generator, the streams and the handles of cuBLAS of this thread and of
  /// autograd's. After initialize().
  void (*initialize_device)(int number) = nullptr;
};

/// Loads it by this name, once a process; null where it is not there or cannot be loaded, and then
/// `problem` says why.
[[nodiscard]] const CudaFunctions* load_cuda_functions(const char* library, std::string& problem);

/// gpus(), where this library serves them. Those that it does not serve are refused by name.
[[nodiscard]] Gpus with_library(Gpus found, const char* library);

/// Of the library that gpus() has loaded. Throws Error(Unavailable) where there is none.
[[nodiscard]] const CudaFunctions& cuda_functions();

}  // namespace sherd::detail
