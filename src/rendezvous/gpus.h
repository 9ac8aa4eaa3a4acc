#pragma once
// The GPUs of this host, and libsherd_cuda.so: what the library needs of CUDA and NCCL, in a
// library of its own, so that all else is compiled once for machines with GPUs and without.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "kernels/kernels.h"
#include "sherd/backend.h"
#include "storage/device_graph.h"
#include "storage/pinned_buffer.h"

namespace sherd::detail {

/// What libsherd_cuda.so has for the library.
struct CudaFunctions {
  /// Whether its kernels, and LibTorch's, run on GPUs of this compute capability.
  bool (*serves)(int major, int minor);
  /// A process group over NCCL, on streams of high priority. Collective.
  c10::intrusive_ptr<c10d::Backend> (*make_nccl_group)(const c10::intrusive_ptr<c10d::Store>& store,
                                                       int rank, int size,
                                                       std::chrono::milliseconds timeout);
  /// For arithmetic on shards (set_device_kernels() in kernels/shard_math.h).
  const kernels::DeviceKernels& (*kernels)();
  /// NCCL's last error in this process.
  std::string (*last_nccl_error)() = nullptr;
  /// "2.28.9"
  std::string (*nccl_version)() = nullptr;
  /// For host memory.
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

/// Of the library that gpus() has loaded. Throws Error(Unavailable) if there is none.
[[nodiscard]] const CudaFunctions& cuda_functions();

/// Returns the device of the rank's number on its host, which becomes the calling thread's. Throws
/// Error(Unavailable) if there is none, and Error(OutOfMemory) if its memory is full.
[[nodiscard]] c10::Device device_of_rank(c10::DeviceType type, int local_rank);

struct SharedGpu {
  int rank = 0;   ///< of the world
  int other = 0;  ///< likewise
  std::string gpu;
};

/// Returns the first two ranks of a group that compute on the same GPU, which NCCL refuses. `gpus`:
/// the GPU of each rank of the world, as a text that is unique to it. Device numbers are not: a
/// launcher may show each rank its own GPU as the first.
[[nodiscard]] std::optional<SharedGpu> shared_gpu(const std::vector<std::string>& gpus,
                                                  const RankGroup& group);

}  // namespace sherd::detail
