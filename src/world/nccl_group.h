#pragma once
// What only CUDA builds have: GPUs, and process groups that move their memory.

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace sherd::detail {

/// Whether this build can use GPUs; asks no driver.
[[nodiscard]] bool built_with_cuda();
/// GPUs that this process sees; 0 in a build without CUDA.
[[nodiscard]] int cuda_devices();
/// A text that this GPU has and no other, on any host: its UUID, or that of its MIG slice. Empty in
/// a build without CUDA.
[[nodiscard]] std::string gpu_uuid(c10::Device device);

/// A process group over NCCL, on streams of high priority. Collective. Throws Error(Unavailable) in
/// a build without CUDA.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_nccl_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout);

}  // namespace sherd::detail
