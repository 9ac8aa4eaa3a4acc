#pragma once
// Process groups that move GPU memory, in builds that have them.

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace sherd::detail {

/// Whether this build can use GPUs; asks no driver.
[[nodiscard]] bool built_with_cuda();
/// GPUs that this process sees; 0 in a build without CUDA.
[[nodiscard]] int cuda_devices();

/// A process group over NCCL, on streams of high priority. Collective. Throws Error(Unavailable) in
/// a build without CUDA.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_nccl_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout);

}  // namespace sherd::detail
